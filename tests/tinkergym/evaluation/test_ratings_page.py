import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "ratings.md"


def test_runs_the_pages_examples(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 5
    for block in blocks:
        exec(block, {})
