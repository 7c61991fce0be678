"""ARCHITECTURE.md is short, and has every folder."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
MOST_LINES = 150


def test_fits_architecture_into_one_sitting():
    assert len(TEXT.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("package", ["tinkergym", "backend"])
def test_mentions_every_folder(package):
    folders = {path.parent.name for path in (ROOT / package).glob("*/*.py")}
    assert {folder for folder in folders if f"`{folder}/`" not in TEXT} == set()
