import os
import signal
import subprocess
import sys
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinkergym.errors import EnvironmentInfrastructureError, InvalidRequestError
from tinkergym.rubrics import math_equal, mathematics

pytest.importorskip("math_verify")


@pytest.mark.parametrize(
    ("answer", "gold", "equal"),
    [
        ("0.5", r"\frac{1}{2}", True),
        (" 042 ", "42", True),
        ("43", "42", False),
        ("x^2+2x+1", "(x+1)^2", True),
        (r"2\sqrt{2}", r"\sqrt{8}", True),
        ("{2, 1}", r"\{1,2\}", True),
        ("(1, 2)", "(2, 1)", False),
        (r"So it is $x=5$.", "5", True),
        (r"First $3$, so \boxed{\frac{3}{4}}.", "0.75", True),
        ("The answer is 6", "6", True),
        ("The answer is 6", "5", False),
        ("", "5", False),
        ("blue", "blue", True),
        ("blue", "red", False),
        ("no idea", "5", False),
        ("\ud800", "5", False),
        ("5" * 10_001, "5", False),
    ],
)
def test_answers_are_compared_as_mathematics(answer, gold, equal):
    assert math_equal(answer, gold) is equal


@pytest.mark.parametrize("answer", [r"10^{10^{10}}", "9^9^9^9^9", r"\sum_{n=1}^{100000000} n^{3}"])
def test_an_answer_that_takes_for_ever_is_not_equal(answer):
    assert math_equal(answer, "5", timeout_seconds=0.5) is False
    assert math_equal("5.0", "5") is True


@pytest.mark.parametrize("piece", ["{", r"\frac{", "(", "$", r"\boxed{", "x+", "\x00", "\\", "^", "\n"])
def test_hostile_formulas_are_bounded(piece):
    assert math_equal((piece * 10_000)[:10_000], "5", timeout_seconds=0.5) is False


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=60))
def test_no_text_raises(answer):
    assert math_equal(answer, r"\frac{1}{7}", timeout_seconds=1) is False


def test_it_works_in_any_thread_and_leaves_signals_alone():
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


@pytest.mark.parametrize("gold", ["", "  ", "5" * 10_001])
def test_a_gold_answer_that_is_none_is_an_error(gold):
    with pytest.raises(InvalidRequestError, match="gold"):
        math_equal("5", gold)


def test_without_math_verify_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(mathematics, "_shared", None)
    monkeypatch.setattr(mathematics.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidRequestError, match=r"\.\[math\]"):
        math_equal("a", "b")


def test_a_helper_that_cannot_start_is_no_wrong_answer(monkeypatch, tmp_path):
    broken = tmp_path / "worker.py"
    broken.write_text("raise SystemExit(1)")
    monkeypatch.setattr(mathematics, "_shared", None)
    monkeypatch.setattr(mathematics, "_WORKER", broken)
    with pytest.raises(EnvironmentInfrastructureError, match="did not start"):
        math_equal("a", "b")


def test_files_of_the_working_folder_do_not_get_in_the_way_and_no_helper_is_left(tmp_path):
    (tmp_path / "re.py").write_text("raise RuntimeError")
    code = (
        "from tinkergym.rubrics import math_equal, mathematics; assert math_equal('0.5', '1/2');"
        "print(mathematics._shared._idle[0]._process.pid)"
    )
    program = [sys.executable, "-P", "-c", code]
    run = subprocess.run(program, capture_output=True, text=True, check=True, cwd=tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(int(run.stdout), 0)
