"""Every subject has a folder: few modules lie loose at the top of a package."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST = 6


@pytest.mark.parametrize("package", ["tinkergym", "backend"])
def test_leaves_few_modules_loose_at_the_top(package):
    loose = {path.name for path in (ROOT / package).glob("[!_]*.py")}
    assert len(loose) <= MOST, sorted(loose)
