"""Algorithms that a pack brings, installed as pip would."""

import re
import sys
from pathlib import Path

import pytest

from tinkergym.schema import algorithm_registry

PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "own_algorithm.md").read_text(encoding="utf-8")
RANKS = re.search(r"```python file=\S+\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]
"""The algorithm of the tutorial."""


def install(folder, pack, code, points):
    """Write a pack into a folder of `sys.path`; `points` are its lines of entry points."""
    (folder / f"{pack}.py").write_text(code)
    info = folder / f"{pack}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {pack}\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("\n".join(["[tinkergym.algorithms]", *points]))


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder to install packs into."""
    algorithm_registry.forget_packs()
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    algorithm_registry.forget_packs()
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in sys.modules[name].__file__:
            del sys.modules[name]


@pytest.fixture
def ranks(site):
    """The tutorial's pack, installed."""
    install(site, "tinkergym_ranks", RANKS, ["ranks = tinkergym_ranks:Ranks"])
    return site
