"""The fixtures of a gateway in this process, and an installed pack."""

import os
import sys

import pytest

from tests.backend.admission.packs import PACK
from tests.backend.gateway_lab import client, gateway, in_background, owner, running_gateway, spec, start_pool

__all__ = ["client", "gateway", "in_background", "owner", "running_gateway", "spec", "start_pool"]


@pytest.fixture
def pack(tmp_path, monkeypatch):
    (tmp_path / "odd_pack.py").write_text(PACK)
    info = tmp_path / "tinkergym_odd-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tinkergym-odd\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text("[tinkergym.envs]\nodd/Odd-v0 = odd_pack:Odd\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    monkeypatch.syspath_prepend(tmp_path)  # as for a service that runs where the pack is installed
    monkeypatch.setenv("ODD_PIDS", str(tmp_path / "pids"))
    return tmp_path
