"""What one sees of jobs, evaluations and policies: on a terminal, in a notebook, as a table."""

import io
import sys

import pytest

import tinkergym as tg
from tinkergym.schema.events import JobState, WarningEvent

SMALL = tg.GRPO(group_size=2, groups_per_step=2)


class Echo(tg.SingleTurnEnv):
    def ask(self, options):
        return f"<b>{self.np_random.integers(100)}</b> & more?"

    def score(self, answer):
        return float(self.np_random.integers(3)), {"length": float(len(answer))}


@pytest.fixture
def job(client):
    job = client.train(Echo, steps=3, algorithm=SMALL)
    yield job
    job.close()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_shows_progress_of_waiting_on_terminals_error_stream_only(job, monkeypatch, capsys):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    job.wait()
    assert "step 3/3" in terminal.getvalue()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("progress", "seen"), [(None, False), (False, False), (True, True)])
def test_shows_nothing_outside_terminals_unless_asked(job, capsys, progress, seen):
    job.wait(progress=progress)
    captured = capsys.readouterr()
    assert (captured.out, "step 3/3" in captured.err) == ("", seen)
    assert seen or not captured.err


def test_says_warning_once_beside_the_display(client, service, capsys):
    job = client.train(Echo, steps=10_000, algorithm=SMALL)
    service.jobs.say(job.id, WarningEvent(name="loss_spike", message="it jumped", step=1, count=1))
    service.jobs.end(job.id, JobState.COMPLETED)
    with pytest.warns(UserWarning, match="it jumped"):
        client.job(job.id).wait(progress=True)
    assert "it jumped" not in capsys.readouterr().err
    client.job(job.id).wait(progress=True, warn=False)
    assert "it jumped" in capsys.readouterr().err
