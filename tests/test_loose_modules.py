"""Every subject has a folder, and every module a name of its own: few lie loose at the top of a package."""

from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST = 6
ALIKE = {"errors"}
"""Base names of modules that mean the same thing: each package's error types."""


@pytest.mark.parametrize("package", ["tinkergym", "backend"])
def test_leaves_few_modules_loose_at_the_top(package):
    loose = {path.name for path in (ROOT / package).glob("[!_]*.py")}
    assert len(loose) <= MOST, sorted(loose)


def test_gives_no_two_modules_one_name():
    names = Counter(
        path.stem for package in ("tinkergym", "backend") for path in ROOT.glob(f"{package}/**/*.py")
    )
    twice = {name for name, count in names.items() if count > 1 and not name.startswith("__")}
    assert twice == ALIKE
