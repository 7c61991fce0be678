"""First examples of pages that need a model which learns; `tests/docs/test_pages.py` runs the others."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.service, pytest.mark.full("trains as other journeys do")]

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    "guides/certificates",
    "guides/checkpoints",
    "guides/multi_agent",
    "guides/own_loop",
    "coming_from/tinker",
]


@pytest.mark.parametrize("page", PAGES)
def test_runs_first_example(service, tmp_path, page):
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    code = re.search(r"^```python no-run\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[1]
    command = [sys.executable, "-c", re.sub(r"steps=\d+", "steps=1", code)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
