import sys

import pytest

from tinkergym.errors import MissingExtraError


def test_says_what_to_install_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "chz", None)  # as if it were not installed
    for name in ("tinker_cookbook", "cookbook_package"):
        monkeypatch.delitem(sys.modules, f"tinkergym.bridges.{name}", raising=False)
    with pytest.raises(MissingExtraError):
        import tinkergym.bridges.tinker_cookbook  # noqa: F401
