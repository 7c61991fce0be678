"""`device=cuda` without a GPU is refused before the service starts anything."""

from __future__ import annotations

import sys

import pytest

from backend.app import gpu_check
from backend.app.supervisor import main
from backend.config import load_config
from backend.errors import ConfigError
from backend.workers import device_choice


@pytest.mark.parametrize("gpus", [0, 1])
@pytest.mark.parametrize(
    ("device", "ranks", "needed", "field"),
    [("cuda", 1, 1, "device"), ("cuda:1", 1, 2, "device"), ("cuda", 2, 2, "learner_ranks")],
)
def test_refuses_missing_gpus(gpus, device, ranks, needed, field):
    if needed <= gpus:
        assert device_choice.device_of(device, ranks=ranks, gpus=gpus) == device
        return
    with pytest.raises(ConfigError) as refused:
        device_choice.device_of(device, ranks=ranks, gpus=gpus)
    assert refused.value.field == (field if gpus else "device")


@pytest.mark.parametrize("gpus", [0, 1])
def test_takes_what_there_is_by_default(gpus):
    assert device_choice.device_of("auto", ranks=1, gpus=gpus) == ("cuda" if gpus else "cpu")


def test_exits_with_one_sentence_without_gpu_on_serve(monkeypatch, capsys, tmp_path):
    """The child is this check without torch, which takes seconds to import."""
    refusal = ConfigError("there is no GPU", hint="set device=cpu", field="device").to_wire()
    command = (sys.executable, "-c", f"import json; print(json.dumps({{'refused': {refusal!r}}}))")
    monkeypatch.setattr(gpu_check, "_COMMAND", command)
    settings = [f"data_dir={tmp_path / 'data'}", "device=cuda"]
    assert main([part for one in settings for part in ("--set", one)]) == 1
    told = capsys.readouterr().err.strip()
    assert "there is no GPU (set device=cpu)" in told
    assert "\n" not in told
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("script", ["raise SystemExit(3)", "print('not JSON')", "print('{}')"])
def test_refuses_nothing_that_child_did_not_see(script):
    gpu_check.require_gpus(load_config(None, ["device=cuda"]), (sys.executable, "-c", script))
