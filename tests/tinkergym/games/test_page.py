import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "games.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_runs_the_code_on_page_as_it_stands(block):
    exec(compile(block, str(PAGE), "exec"), {"__name__": "page"})
