import importlib.util
import re
import sys
import types
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"```python( needs (?P<needs>\w+))?\n(?P<code>.*?)```", re.DOTALL)
CASES = [
    pytest.param(page, found["code"], found["needs"], id=f"{page} {number}")
    for page in ("tools.md", "rewards.md")
    for number, found in enumerate(BLOCK.finditer((DOCS / page).read_text(encoding="utf-8")))
]


@pytest.mark.parametrize(("page", "code", "needs"), CASES)
def test_the_code_on_the_page_runs_as_it_stands(page, code, needs, monkeypatch):
    if needs and importlib.util.find_spec(needs) is None:
        pytest.skip(f"needs {needs}")
    module = types.ModuleType("a_page")
    monkeypatch.setitem(sys.modules, "a_page", module)
    exec(compile(code, page, "exec"), module.__dict__)


def test_there_are_pages_to_run():
    assert len(CASES) >= 7
