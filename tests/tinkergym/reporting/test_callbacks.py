"""Trackers against small stand-ins of their packages, which are not installed for `make test`.

The stand-ins show how the packages are called, not that they work so: `test_real_trackers.py` does.
"""

import sys

import pytest

from tinkergym.errors import MissingExtraError
from tinkergym.reporting.trackers import callbacks_of

NAMES = ["mlflow", "tensorboard", "trackio", "wandb"]


@pytest.mark.parametrize("name", NAMES)
def test_names_package_that_is_missing(name, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError) as missing:
        callbacks_of(name)
    assert f"pip install {name}" in missing.value.hint
