import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "writing_environments.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_the_code_on_the_page_runs_as_it_stands(block):
    names = {"__name__": "page"}
    exec(compile(block, str(PAGE), "exec"), names)
    for test in [value for name, value in names.items() if name.startswith("Test")]:
        for method in [method for method in dir(test) if method.startswith("test_")]:
            getattr(test(), method)()
