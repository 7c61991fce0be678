from __future__ import annotations

import logging

import torch
from torch import Tensor

from backend.compiled import compiled


def doubled(states: Tensor, times: int) -> Tensor:
    for _ in range(times):
        states = states + states
    return states


def read_by_nobody(states: Tensor) -> Tensor:
    return sum(part for part in states)


def test_a_function_of_tensors_is_compiled_and_computes_the_same():
    fast, states = compiled(doubled), torch.randn(3, 5)
    assert isinstance(fast, torch.jit.ScriptFunction)
    assert torch.equal(fast(states, 3), doubled(states, 3))


def test_what_torch_cannot_compile_is_run_as_it_is_and_the_log_says_so(caplog):
    with caplog.at_level(logging.WARNING):
        assert compiled(read_by_nobody) is read_by_nobody
    assert "read_by_nobody is run by Python" in caplog.text
