from __future__ import annotations

import subprocess
import sys

from backend.processes.own_memory import resident_bytes

CHILD = "import sys; held = bytearray(40_000_000); print('up', flush=True); sys.stdin.read()"


def test_counts_what_this_process_has_started():
    before = resident_bytes()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", CHILD], **pipes) as child:
        child.stdout.readline()
        assert resident_bytes() - before > 40_000_000
        child.stdin.close()
