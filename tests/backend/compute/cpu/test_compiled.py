# Annotations stay what they are, not strings: see `backend.compute.cpu.compiled`.
import inspect
import logging
import sys
import threading
import time
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from backend.compute.cpu.compiled import compiled


def doubled(states: Tensor, times: int) -> Tensor:
    for _ in range(times):
        states = states + states
    return states


def read_by_nobody(states: Tensor) -> Tensor:
    return sum(part for part in states)


def test_compiles_function_of_tensors_that_computes_the_same():
    fast, states = compiled(doubled), torch.randn(3, 5)
    assert isinstance(inspect.unwrap(fast), torch.jit.ScriptFunction)
    assert torch.equal(fast(states, 3), doubled(states, 3))


def test_runs_uncompilable_function_as_it_is_and_logs_it(caplog):
    with caplog.at_level(logging.WARNING):
        assert compiled(read_by_nobody) is read_by_nobody
    assert "read_by_nobody is not compiled" in caplog.text


class Inputs(NamedTuple):
    first: Tensor
    second: Tensor


def passed_on(states: Tensor, inputs: list[Inputs], reached: Tensor) -> Tensor:
    states = states + 1.0  # and what came from Python is let go of
    for one in inputs:
        states = states + one.first + one.second
    inputs = inputs[:0]
    reached.fill_(1)
    return states


@pytest.fixture
def no_switching():
    """Python's lock stays with whoever has it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    yield
    sys.setswitchinterval(before)


def reaches_its_end_beside_a_keeper_of_the_lock() -> bool:
    reached, inputs = torch.zeros(1), [Inputs(torch.ones(3), torch.ones(3)) for _ in range(4)]
    seen, states, fast = reached.numpy(), torch.zeros(3), compiled(passed_on)
    for _ in range(2):  # torch compiles in the first two calls
        fast(states, inputs, reached)
    reached.zero_()
    starting, found = threading.Event(), []

    def keep_the_lock() -> None:
        starting.wait()
        deadline = time.monotonic() + 10.0
        while not seen[0] and time.monotonic() < deadline:
            pass
        found.append(float(seen[0]))

    keeper = threading.Thread(target=keep_the_lock)
    keeper.start()
    starting.set()
    # The keeper takes the lock as soon as the function gives it away; all that it is given is there already.
    fast(states, inputs, reached)
    keeper.join()
    return found == [1.0]


def test_finishes_compiled_function_while_another_thread_keeps_the_lock(no_switching):
    # Whatever else gives the lock away, to the keeper, before the function is called, costs an attempt.
    assert any(reaches_its_end_beside_a_keeper_of_the_lock() for _ in range(3))
