"""The switch is read when a process starts, so it is tested in one of its own."""

import subprocess
import sys

import pytest

SCRIPT = """
from pathlib import Path
import torch
from backend.compute.cpu.compiled import compiled
from backend.compute.cpu.fast_linears import all_through_onednn, speed_up_linears
from backend.settings.served_models import PACKAGED_MODELS
from backend.engines.transformers.packed_model import PackedModel

def plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1

model = PackedModel(Path(PACKAGED_MODELS["nano"]), device=torch.device("cpu"), dtype=torch.float32)
print(model.is_lean, all_through_onednn(model._model), compiled(plus_one) is plus_one)
print(any("forward" in vars(module) for name, module in model._model.named_modules() if "norm" in name))
"""


@pytest.mark.full("loads torch and a model in a process of its own")
def test_runs_plain_torch_with_kernels_off(monkeypatch):
    monkeypatch.setenv("TINKERGYM_CPU_KERNELS", "off")
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False", "True", "False"]
