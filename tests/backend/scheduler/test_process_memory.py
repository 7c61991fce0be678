from __future__ import annotations

import os
import subprocess
import sys

from backend.scheduler.process_memory import resident_bytes

CHILD = "import sys; held = bytearray(40_000_000); print('up', flush=True); sys.stdin.read()"


def test_counts_what_processes_of_a_group_have_started():
    before = resident_bytes({"mine": [os.getpid()]})["mine"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", CHILD], **pipes) as child:
        child.stdout.readline()
        found = resident_bytes({"mine": [os.getpid()], "gone": [2**22 + 1]})
        apart = resident_bytes({"mine": [os.getpid()], "child": [child.pid]})
        child.stdin.close()
    assert found["mine"] - before > 40_000_000
    assert apart["child"] > 40_000_000
    assert apart["mine"] < found["mine"] - 40_000_000
    assert found["gone"] == 0
