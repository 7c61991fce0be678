"""A checkout imported by a Python that is too old says so, in one sentence."""

from __future__ import annotations

import sys
from collections import namedtuple
from pathlib import Path

import pytest

import tinkergym

Version = namedtuple("Version", "major minor micro releaselevel serial")


@pytest.mark.parametrize(("argv", "kind"), [(["-c"], ImportError), (["-m", "jobs"], SystemExit)])
def test_names_needed_and_present_python(monkeypatch, argv, kind):
    source = compile(Path(tinkergym.__file__).read_text(), "tinkergym", "exec")
    monkeypatch.setattr(sys, "version_info", Version(3, 10, 1, "final", 0))
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(kind):
        exec(source, {"__name__": "tinkergym"})  # as an import would
