import os
import subprocess
import sys

import pytest

from backend.processes.waiting_time import waited_seconds

ON_CORE = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_counts_the_time_of_a_ready_process_without_a_core():
    core = min(os.sched_getaffinity(0))
    both = [
        subprocess.Popen([sys.executable, "-c", f"{ON_CORE}while True: pass", str(core)]) for _ in range(2)
    ]
    try:
        while waited_seconds(both[0].pid) < 0.05:
            assert both[0].poll() is None
    finally:
        for one in both:
            one.kill()
            one.wait()


def test_knows_nothing_of_processes_that_are_gone():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert waited_seconds(gone.pid) == 0.0
