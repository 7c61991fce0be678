"""Which failures are for want of memory, and when a process ends by them."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

from backend.processes.exhaustion import OUT_OF_MEMORY, out_of_memory_code, says_out_of_memory

# A process of its own, because it ends.
CHILD = """
import psutil
from backend.processes.exhaustion import end_if_exhausted, end_when_exhausted
from tests.limited_memory import limit_memory

if {replaced}:
    end_when_exhausted()
limit_memory(psutil.Process(), {spare} * 2**20)
try:
    {fails}
except Exception as error:
    end_if_exhausted(error)
raise SystemExit(7)
"""
NO_THREAD = 'raise RuntimeError("can\'t start new thread")'
IN_A_GROUP = "raise ExceptionGroup('tasks', [ValueError(), MemoryError()])"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MemoryError(), OUT_OF_MEMORY),
        (OSError(errno.ENOMEM, "no memory"), OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 4 bytes"), OUT_OF_MEMORY),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), OUT_OF_MEMORY),
        (ExceptionGroup("tasks", [ValueError(), MemoryError()]), OUT_OF_MEMORY),
        (OSError(errno.ENOSPC, "out of memory"), ""),
        (ValueError("the text says: out of memory"), ""),
        (RuntimeError("shapes differ"), ""),
    ],
)
def test_gives_errors_of_missing_memory_a_code(error, code):
    assert out_of_memory_code(error) == code


@pytest.mark.parametrize("text", ["rank 1 failed in logprobs: MemoryError: ", "OutOfMemoryError: CUDA error"])
def test_recognizes_missing_memory_in_reports_of_other_processes(text):
    assert says_out_of_memory(text)
    assert not says_out_of_memory("rank 1 was killed")


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not limit a process's memory")
@pytest.mark.parametrize(
    ("replaced", "spare", "fails", "ends"),
    [
        (True, 8, "bytearray(2**40)", True),
        (True, 8, NO_THREAD, True),
        (True, 8, IN_A_GROUP, True),
        (True, 8, "raise ValueError", False),
        # One piece of work wanted too much.
        (True, 2000, "bytearray(2**40)", False),
        # A limit for threads.
        (True, 2000, NO_THREAD, False),
        # A program of a user, with a service inside.
        (False, 8, "bytearray(2**40)", False),
    ],
)
def test_ends_only_a_replaced_process_without_memory(replaced, spare, fails, ends):
    code = CHILD.format(replaced=replaced, spare=spare, fails=fails)
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert child.returncode == (1 if ends else 7), child.stderr
    assert (b"no memory left" in child.stderr) == ends
