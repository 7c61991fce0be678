"""What `make demo` says when it is interrupted, with a short example in place of its own."""

import importlib.util
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "scripts" / "demo.py"
EXAMPLE = """
from types import SimpleNamespace
from tinkergym.wire import JobState

class Job:
    id = "job-1"

    def cancel(self):
        return SimpleNamespace(state=JobState.{state}, step={step}, spec=SimpleNamespace(steps=5))

job = Job()
raise KeyboardInterrupt
"""


@pytest.fixture
def interrupted(tmp_path, monkeypatch, capsys):
    """Return a function that runs the demo with an example and returns its last line."""
    monkeypatch.setenv("TINKERGYM_URL", "http://127.0.0.1:1")  # so that none is started
    spec = importlib.util.spec_from_file_location("demo_under_test", DEMO)
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)

    def run(example: str) -> str:
        (tmp_path / "example.py").write_text(example)
        monkeypatch.setattr(demo, "EXAMPLE", tmp_path / "example.py")
        assert demo.main() == 130
        return capsys.readouterr().err.strip().splitlines()[-1]

    return run


@pytest.mark.parametrize(
    ("state", "step", "said"),
    [
        ("CANCELLED", 0, "job-1 is cancelled before its first step"),
        ("RUNNING", 3, "job-1 is cancelled after step 3 of 5"),
        ("COMPLETED", 5, "job-1 was done by then"),
    ],
)
def test_it_says_what_became_of_the_job(interrupted, state, step, said):
    assert interrupted(EXAMPLE.format(state=state, step=step)) == f"demo: interrupted; {said}"


def test_before_there_is_a_job_nothing_was_started(interrupted):
    assert interrupted("raise KeyboardInterrupt") == "demo: interrupted; nothing was started"
