from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from backend.processes import memory
from backend.processes.memory import resident_bytes

CHILD = "import sys; held = bytearray(40_000_000); print('up', flush=True); sys.stdin.read()"


def test_counts_what_this_process_has_started():
    before = resident_bytes()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", CHILD], **pipes) as child:
        child.stdout.readline()
        assert resident_bytes() - before > 40_000_000
        assert resident_bytes(child.pid) > 40_000_000
        child.stdin.close()
    assert resident_bytes(child.pid) == 0


def test_counts_a_containers_limit_if_it_is_smaller(tmp_path):
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = tmp_path / "memory.max"
    assert memory.machine_bytes(limit) == whole
    for text, expected in (("max", whole), ("1024\n", 1024), (str(10 * whole), whole)):
        limit.write_text(text)
        assert memory.machine_bytes(limit) == expected


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MemoryError(), memory.OUT_OF_MEMORY),
        (OSError(errno.ENOMEM, "no memory"), memory.OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 4 bytes"), memory.OUT_OF_MEMORY),
        # As ranks and vLLM report theirs.
        (RuntimeError("rank 1 failed in logprobs: MemoryError: "), memory.OUT_OF_MEMORY),
        (RuntimeError("OutOfMemoryError: CUDA error"), memory.OUT_OF_MEMORY),
        (OSError(errno.ENOSPC, "out of memory"), ""),
        (ValueError("the text says: out of memory"), ""),
        (RuntimeError("shapes differ"), ""),
    ],
)
def test_knows_failures_for_want_of_memory(error, code):
    assert memory.code_of(error) == code


def test_gives_memory_back_at_any_time():
    memory.give_memory_back()
    memory.give_memory_back()
