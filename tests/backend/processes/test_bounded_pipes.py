import subprocess
import sys

import pytest

from backend.processes import bounded_pipes


def asked(code, question=b"", seconds=60.0):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen([sys.executable, "-c", code], **pipes)
    try:
        return bounded_pipes.communicate(child, question, seconds)
    finally:
        child.kill()
        child.wait()


def test_keeps_only_end_of_the_output_of_an_asked_child():
    code = "import sys\nfor n in range(40): sys.stderr.write('x' * 10**5)\nsys.stderr.write('end')\nprint(1)"
    out, err = asked(code)
    assert out == b"1\n"
    assert len(err) == bounded_pipes.KEPT_BYTES
    assert err.endswith(b"xend")


def test_passes_long_question_to_child_also_while_it_prints():
    question = b"q" * 3_000_000
    code = "import sys; print('y' * 10**5, file=sys.stderr); print(len(sys.stdin.read()))"
    assert asked(code, question)[0] == b"3000000\n"


def test_accepts_child_that_ends_without_listening():
    assert asked("print('no')", b"q" * 3_000_000) == (b"no\n", b"")


def test_reports_slow_child_and_leaves_it_to_the_caller():
    with pytest.raises(subprocess.TimeoutExpired):
        asked("while True: print('x' * 1000)", seconds=0.5)
