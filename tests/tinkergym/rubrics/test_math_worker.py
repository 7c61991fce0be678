import os
import signal
import subprocess
import sys
import threading

import pytest

from tinkergym.errors import EnvironmentInfrastructureError
from tinkergym.rubrics import math_equal, mathematics

pytest.importorskip("math_verify")


@pytest.mark.parametrize(
    "answer",
    [
        r"10^{10^{10}}",
        *(
            pytest.param(other, marks=pytest.mark.full("takes as long"))
            for other in ("9^9^9^9^9", r"\sum_{n=1}^{100000000} n^{3}")
        ),
    ],
)
def test_calls_unequal_an_answer_that_takes_forever(answer):
    assert math_equal(answer, "5", timeout_seconds=0.5) is False
    assert math_equal("5.0", "5") is True


def test_works_in_any_thread_and_leaves_signals_alone():
    before = signal.getsignal(signal.SIGALRM)
    found = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(math_equal(f"{n}/7", rf"\frac{{{n}}}{{7}}")))
        for n in range(2, 8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 6
    assert signal.getsignal(signal.SIGALRM) is before


def test_blames_no_answer_for_helper_that_cannot_start(monkeypatch, tmp_path):
    broken = tmp_path / "worker.py"
    broken.write_text("raise SystemExit(1)")
    mathematics.close_helpers()
    monkeypatch.setattr(mathematics, "_WORKER", broken)
    with pytest.raises(EnvironmentInfrastructureError):
        math_equal("a", "b")


def test_ignores_files_of_the_working_folder(tmp_path):
    (tmp_path / "re.py").write_text("raise RuntimeError")
    code = (
        "from tinkergym.rubrics import math_equal, mathematics; assert math_equal('0.5', '1/2');"
        "print(mathematics._shared._idle[0]._process.pid)"
    )
    program = [sys.executable, "-P", "-c", code]
    run = subprocess.run(program, capture_output=True, text=True, check=True, cwd=tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(int(run.stdout), 0)
