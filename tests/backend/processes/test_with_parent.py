import subprocess
import sys

import psutil
import pytest

from tests.backend.served import still_alive

PARENT = """
import subprocess, sys
subprocess.Popen([sys.executable, "-m", "backend.processes.with_parent", *sys.argv[1:]]).wait()
"""
PROGRAM = """
import os, sys, threading
import neighbour
print(__name__, neighbour.word, *sys.argv[1:], os.getpid(), flush=True)
threading.Event().wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends processes with their parent")
def test_runs_program_as_python_does_and_ends_with_its_parent(tmp_path):
    (tmp_path / "neighbour.py").write_text("word = 'here'")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-c", PARENT, str(program), "--loud"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        *said, pid = parent.stdout.readline().split()
        child = psutil.Process(int(pid))
        parent.kill()
        left = still_alive([child])
        for one in left:
            one.kill()
    assert said == ["__main__", "here", "--loud"]
    assert left == []
