from __future__ import annotations

import os
import subprocess
import sys

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


def test_gives_memory_back_at_any_time():
    memory.give_memory_back()
    memory.give_memory_back()
