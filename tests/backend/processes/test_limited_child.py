import os
import signal
import sys
from contextlib import contextmanager

import pytest

from backend.processes.limited_child import ChildLimitError, ChildLimits, LimitedChild

PROGRAM = """
import os, signal, time
from backend.processes.limited_child import answer_questions

def answer(question):
    if question == b"spin":
        while True:
            pass
    if question == b"compute":
        end = time.process_time() + 0.4
        while time.process_time() < end:
            pass
    if question == b"hoard":
        return bytes(1 << 30)
    if question == b"sleep":
        signal.pause()
    if question == b"raise":
        raise RuntimeError("a fault")
    if question == b"print":
        print("something", flush=True)
    return f"{os.getpid()} {os.environ.get('AWS_SECRET')}".encode()

def main():
    answer_questions(answer)
"""
AMPLE = ChildLimits(cpu_seconds=1, memory_bytes=2**28, wall_seconds=60.0)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="not every system limits memory")


@pytest.fixture
def child(tmp_path, monkeypatch):
    (tmp_path / "answering.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("AWS_SECRET", "of the operator")

    @contextmanager
    def started(limits=AMPLE):
        one = LimitedChild("answering", limits)
        try:
            yield one
        finally:
            one.close()

    return started


def test_answers_in_one_process_without_the_operators_variables(child):
    with child() as one:
        first = one.ask(b"who").split()
        assert one.ask(b"print").split() == first
        assert (int(first[0]) != os.getpid(), first[1]) == (True, b"None")


@pytest.mark.parametrize(("question", "limit"), [(b"spin", "cpu"), (b"hoard", "memory"), (b"raise", "crash")])
def test_answers_the_next_question_after_a_limit(child, question, limit):
    with child() as one:
        one.ask(b"who")
        with pytest.raises(ChildLimitError) as caught:
            one.ask(question)
        assert caught.value.limit == limit
        assert one.ask(b"who")


def test_ends_a_question_at_its_deadline(child):
    with child(ChildLimits(cpu_seconds=1, memory_bytes=2**28, wall_seconds=0.01)) as one:
        with pytest.raises(ChildLimitError) as caught:
            one.ask(b"sleep")
        assert caught.value.limit == "time"


def test_replaces_a_child_that_was_killed_between_questions(child):
    with child() as one:
        pid = int(one.ask(b"who").split()[0])
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert int(one.ask(b"who").split()[0]) != pid


def test_counts_the_cpu_time_of_each_question_alone(child):
    with child() as one:
        assert len({one.ask(b"compute") for _ in range(3)}) == 1


def test_ends_child_when_closing(child):
    with child() as one:
        pid = int(one.ask(b"who").split()[0])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
