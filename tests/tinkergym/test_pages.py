import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "guides"
PAGES = ["bridges.md", "episodes.md", "images.md", "spaces.md"]


def blocks(page):
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize(
    ("page", "number"), [(page, number) for page in PAGES for number in range(len(blocks(page)))]
)
def test_runs_the_code_on_page_as_it_stands(page, number):
    names = {"__name__": "page"}
    exec(compile(blocks(page)[number], page, "exec"), names)
    for test in [value for name, value in names.items() if name.startswith("Test")]:
        for method in [method for method in dir(test) if method.startswith("test_")]:
            getattr(test(), method)()
