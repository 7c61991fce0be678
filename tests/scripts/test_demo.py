"""What `make demo` says at its end and when it is interrupted, with a short example in place of its own."""

import contextlib
import importlib.util
import signal
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "scripts" / "demo.py"
EXAMPLE = """
from types import SimpleNamespace
from tinkergym.schema.events import JobState

class Job:
    id = "job-1"

    def cancel(self):
        return SimpleNamespace(state=JobState.{state}, step={step}, spec=SimpleNamespace(steps=5))

job = Job()
raise KeyboardInterrupt
"""
WHOLE = """
from types import SimpleNamespace
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec

spec = RLSpec(environment=EnvironmentRef(id="board/TicTacToeVs-v0"), steps=5)
job = SimpleNamespace(id="job-1", spec=spec)
"""


@pytest.fixture
def demo(monkeypatch):
    monkeypatch.setenv("TINKERGYM_URL", "http://127.0.0.1:1")  # so that none is started
    spec = importlib.util.spec_from_file_location("demo_under_test", DEMO)
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    return demo


@pytest.fixture
def interrupted(demo, tmp_path, capsys):
    """Return a function that runs the demo with an example and returns its last line."""

    def run(example: str) -> str:
        (tmp_path / "example.py").write_text(example)
        assert demo.main(tmp_path / "example.py") == 130
        return capsys.readouterr().err.strip().splitlines()[-1]

    return run


@pytest.mark.parametrize(
    ("state", "step", "said"),
    [
        ("CANCELLED", 0, "job-1 was cancelled before its first step"),
        ("RUNNING", 3, "job-1 was cancelled after step 3 of 5"),
        ("COMPLETED", 5, "job-1 had already ended"),
    ],
)
def test_says_what_became_of_the_job(interrupted, state, step, said):
    assert interrupted(EXAMPLE.format(state=state, step=step)) == f"demo: interrupted; {said}"


def test_cancels_job_on_sigterm_like_ctrl_c(interrupted):
    before = signal.getsignal(signal.SIGTERM)
    ended = EXAMPLE.replace("raise KeyboardInterrupt", "import signal; signal.raise_signal(signal.SIGTERM)")
    assert "job-1 was cancelled" in interrupted(ended.format(state="CANCELLED", step=0))
    assert signal.getsignal(signal.SIGTERM) is before


def test_says_that_nothing_was_started_before_a_job(interrupted):
    assert interrupted("raise KeyboardInterrupt") == "demo: interrupted; nothing was started"


@pytest.mark.parametrize("started_here", [True, False])
def test_tells_user_without_service_to_start_it_before_playing(demo, started_here, tmp_path, capsys):
    (tmp_path / "example.py").write_text(WHOLE)
    service = lambda announce: contextlib.nullcontext(started_here)  # noqa: E731
    assert demo.main(tmp_path / "example.py", service) == 0
    shown = capsys.readouterr().out
    assert ("first `make serve`" in shown) is started_here
    assert ("tinkergym play board/TicTacToeVs-v0 --policy job-1" in shown) is started_here


def test_names_a_service_that_is_already_there_by_its_url(demo, tmp_path, capsys):
    (tmp_path / "example.py").write_text("")
    assert demo.main(tmp_path / "example.py") == 0
    assert "http://127.0.0.1:1" in capsys.readouterr().out
