import json
import os
import shlex
import subprocess
import sys
import threading

import pytest

from backend.scheduler import early_worker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there it is not used")

PROGRAM = """
import json, os, pathlib, signal, sys
said = {
    "pid": os.getpid(),
    "arguments": sys.argv[1:],
    "name": __name__,
    "imported": "graphlib" in sys.modules,
    "for_it": os.environ.get("FOR_IT"),
    "nice": os.nice(0),
    "oom_score": pathlib.Path("/proc/self/oom_score_adj").read_text().strip(),
}
print(json.dumps(said), file=open(os.environ["ANSWER"], "w"), flush=True)
signal.pause()
"""


class Place:
    """Where a process may wait, and a program that says where it runs, and ends when it is killed."""

    def __init__(self, folder):
        self.folder, self.socket, self.program = folder, folder / "a socket", folder / "program.py"
        self.program.write_text(PROGRAM)

    def waiting(self):
        process = early_worker.start(self.socket, module="graphlib")
        while early_worker.python_in(self.socket) is None:
            assert process.poll() is None
            threading.Event().wait(0.01)
        return process

    def run(self, python, name):
        """As Ray starts a worker: in a shell, and then made nicer and less worth keeping."""
        os.mkfifo(self.folder / name)
        command = (
            f"echo 1000 > /proc/self/oom_score_adj; exec nice -n 5 {python} {self.program} one 'and two'"
        )
        process = subprocess.Popen(
            ["bash", "-c", command],
            env=os.environ | {"FOR_IT": name, "ANSWER": str(self.folder / name)},
        )
        with (self.folder / name).open() as answer:
            return process, json.loads(answer.readline())


def end(*processes):
    for process in processes:
        process.kill()
        process.wait(timeout=120)


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_runs_program_in_the_process_that_waited(place):
    waited = place.waiting()
    runner, said = place.run(early_worker.python_in(place.socket), "first")
    assert said["pid"] == waited.pid
    assert said["imported"]
    assert (said["name"], said["arguments"], said["for_it"]) == ("__main__", ["one", "and two"], "first")
    assert (said["nice"], said["oom_score"]) == (os.nice(0) + 5, "1000")
    # Ray takes the end of the one for the end of the other.
    assert runner.poll() is None
    end(waited)
    assert runner.wait(timeout=120) == 0


def test_gives_second_program_a_process_of_its_own(place):
    waited = place.waiting()
    python = early_worker.python_in(place.socket)
    first, _ = place.run(python, "first")
    assert early_worker.python_in(place.socket) is None
    second, said = place.run(python, "second")
    assert (said["pid"], said["for_it"]) == (second.pid, "second")
    end(waited, first, second)


def test_survives_death_of_a_waiting_process(place):
    waited = place.waiting()
    end(waited)
    python = early_worker.python_in(place.socket) or shlex.quote(sys.executable)
    runner, said = place.run(python, "alone")
    assert (said["pid"], said["imported"]) == (runner.pid, False)
    end(runner)
