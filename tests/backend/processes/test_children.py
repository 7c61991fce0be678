"""Processes of the service know their place."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from backend.processes.children import waited_seconds
from tests.backend.served import still_alive

SESSION = Path("/proc/self/autogroup")
ASK = f"""
import os
from backend.processes.children import stand_back
stand_back()
print(os.nice(0), *open({str(SESSION)!r}).read().split()[-1:] if os.path.exists({str(SESSION)!r}) else [])
"""


@pytest.mark.parametrize("own_session", [True, False])
def test_leaves_time_to_others_by_process_that_stands_back(own_session):
    command = [sys.executable, "-c", ASK]
    answer = subprocess.run(
        command, start_new_session=own_session, capture_output=True, text=True, check=True
    )
    niceness, *of_session = answer.stdout.split()
    assert int(niceness) == min(os.nice(0) + 10, 19)
    # The file is empty where the kernel does not weigh sessions, and for processes that it counts to none.
    if of_session:
        assert of_session == (["10"] if own_session else SESSION.read_text().split()[-1:])


CHILD = """
import threading
from backend.processes.children import one_question

threading.Thread(target=threading.Event().wait).start()  # an environment's, which never ends
with one_question() as (question, answers):
    print("noise of an environment")
    answers.write(question["word"])
"""


def test_prints_answer_alone_and_lets_no_thread_keep_the_process():
    child = subprocess.run(
        [sys.executable, "-c", CHILD],
        input='{"word": "yes"}',
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (child.returncode, child.stdout) == (0, "yes")
    assert "noise of an environment" in child.stderr


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


PARENT = """
import subprocess, sys
subprocess.Popen([sys.executable, "-m", "backend.processes.children", *sys.argv[1:]]).wait()
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
