"""`placement.gpus` without GPUs is refused before the service starts anything."""

from __future__ import annotations

import sys

import pytest

from backend.app import machine_checks
from backend.app.machine_checks import require_divided_heads
from backend.app.supervisor import main
from backend.config import load_config
from backend.errors import ConfigError
from backend.workers import device_choice


@pytest.mark.parametrize("seen", [0, 1])
@pytest.mark.parametrize(("gpus", "ranks", "needed"), [(1, 1, 1), (2, 1, 2), (2, 2, 2)])
def test_refuses_missing_gpus(seen, gpus, ranks, needed):
    if needed <= seen:
        assert device_choice.device_of(gpus, ranks=ranks, seen=seen) == "cuda"
        return
    with pytest.raises(ConfigError, check=lambda error: error.field == "placement.gpus"):
        device_choice.device_of(gpus, ranks=ranks, seen=seen)


@pytest.mark.parametrize("seen", [0, 1])
def test_takes_what_there_is_by_default(seen):
    assert device_choice.device_of(None, ranks=1, seen=seen) == ("cuda" if seen else "cpu")


def test_exits_with_one_sentence_without_gpu_on_serve(monkeypatch, capsys, tmp_path):
    """The child is this check without torch, which takes seconds to import."""
    refusal = ConfigError("there is no GPU", hint="set placement.gpus=0", field="placement.gpus").to_wire()
    command = (sys.executable, "-c", f"import json; print(json.dumps({{'refused': {refusal!r}}}))")
    monkeypatch.setattr(machine_checks, "_COMMAND", command)
    settings = [f"data_dir={tmp_path / 'data'}", "placement.gpus=1"]
    assert main([part for one in settings for part in ("--set", one)]) == 1
    told = capsys.readouterr().err.strip()
    assert "there is no GPU (set placement.gpus=0)" in told
    assert "\n" not in told
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("script", ["raise SystemExit(3)", "print('not JSON')", "print('{}')"])
def test_refuses_nothing_that_child_did_not_see(script):
    machine_checks.require_gpus(load_config(None, ["placement.gpus=1"]), (sys.executable, "-c", script))


def test_refuses_tensor_parallel_that_does_not_divide_heads(capsys, tmp_path):
    settings = [f"data_dir={tmp_path / 'data'}", "engine=vllm", "placement.tensor_parallel=3"]
    assert main([part for one in settings for part in ("--set", one)]) == 1
    assert "models.nano.placement.tensor_parallel" in capsys.readouterr().err
    require_divided_heads(load_config(None, [*settings[1:], "preload=[]"]))  # Packaged models are not used.
    require_divided_heads(load_config(None, ["engine=vllm", "placement.tensor_parallel=2"]))
