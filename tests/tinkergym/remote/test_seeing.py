"""What one sees of jobs, evaluations and policies: on a terminal, in a notebook, as a table."""

import io
import sys
import types
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinkergym as tg
from tinkergym.display.html import curve, histogram
from tinkergym.errors import MissingExtraError
from tinkergym.schema.events import Event, JobState, WarningEvent

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


def test_waiting_shows_progress_on_a_terminal_on_the_error_stream_only(job, monkeypatch, capsys):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    job.wait()
    assert "step 3/3" in terminal.getvalue()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("progress", "seen"), [(None, False), (False, False), (True, True)])
def test_elsewhere_it_is_quiet_unless_it_is_asked_for(job, capsys, progress, seen):
    job.wait(progress=progress)
    captured = capsys.readouterr()
    assert (captured.out, "step 3/3" in captured.err) == ("", seen)
    assert seen or not captured.err


def test_a_warning_is_said_once_beside_the_display(client, service, job, capsys):
    job.wait()
    with service.jobs.changed:
        events = service.jobs.get(job.id).events
        body = WarningEvent(name="loss_spike", message="it jumped", step=1, count=1)
        events.insert(-1, Event(seq=len(events), job_id=job.id, time=0, body=body))
        events[-1] = events[-1].model_copy(update={"seq": len(events)})
    with pytest.warns(UserWarning, match="it jumped"):
        client.job(job.id).wait(progress=True)
    assert "it jumped" not in capsys.readouterr().err
    client.job(job.id).wait(progress=True, warn=False)
    assert "it jumped" in capsys.readouterr().err


def read(html):
    """Parse it: what comes from outside cannot have opened or closed a tag."""
    return ElementTree.fromstring(html)


def test_a_notebook_shows_a_job_with_its_curve(job):
    assert read(job._repr_html_()).find(".//polyline", None) is None
    job.wait()
    shown = read(job._repr_html_())
    (line,) = [one for one in shown.iter() if one.tag.endswith("polyline")]
    assert len(line.get("points").split()) == 3
    assert job.id in job._repr_html_()


def test_waiting_in_a_notebook_draws_the_curve_while_it_grows(job, monkeypatch):
    drawn = []
    handle = types.SimpleNamespace(update=lambda shown: drawn.append(shown._repr_html_()))
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    display = types.ModuleType("IPython.display")
    display.display = lambda shown, display_id: drawn.append(shown._repr_html_()) or handle
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    job.wait()
    assert "polyline" not in drawn[0] and "polyline" in drawn[-1]
    drawn.clear()
    job.wait(progress=False)
    assert not drawn


def test_an_evaluation_is_one_line_and_a_card(job, client):
    evaluation = client.policy("nano").evaluate(Echo, episodes=40)
    assert len(repr(evaluation)) < 200 and str(evaluation) in repr(evaluation)
    shown = read(evaluation._repr_html_())
    assert [one for one in shown.iter() if one.tag.endswith("rect")]
    assert "<b>" in "".join(shown.itertext())  # what the environment said, as text
    failed = tg.Evaluation(trajectories=())
    assert "none completed" in repr(failed) and read(failed._repr_html_()) is not None


def test_a_policy_is_a_card(client):
    shown = "".join(read(client.policy("nano", system_prompt="Be <brief>.")._repr_html_()).itertext())
    assert "Be <brief>." in shown and "nano" in shown


def test_figures_become_tables(job, client):
    job.wait()
    steps = job.to_pandas()
    assert list(steps["step"]) == [1, 2, 3]
    assert list(steps["reward_mean"]) == [step.reward_mean for step in job.steps()]
    evaluation = client.policy("nano").evaluate(Echo, episodes=4, seed=7)
    episodes = evaluation.to_pandas()
    assert list(episodes["seed"]) == [7, 8, 9, 10]
    assert episodes["return"].mean() == evaluation.mean
    assert episodes["length"].mean() == evaluation.metrics["length"]


def test_of_a_job_that_runs_the_steps_so_far_are_there_at_once(client, service):
    job = client.train(Echo, steps=10_000, algorithm=SMALL)
    for event in job.events():
        if event.body.type == "step" and event.body.step == 2:
            break
    assert [step.step for step in job.steps()][:2] == [1, 2]
    service.jobs.end(job.id, JobState.CANCELLED)
    job.close()


def test_without_pandas_it_is_named(job, client, monkeypatch):
    evaluation = client.policy("nano").evaluate(Echo, episodes=2)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pandas"):
        evaluation.to_pandas()


@given(st.lists(st.floats(-1e300, 1e300), max_size=600), st.text())
def test_every_curve_is_a_picture(values, name):
    for draw in (curve, histogram):
        drawn = draw(values, name.replace("\x00", ""))
        assert bool(drawn) == bool(values)
        assert "nan" not in drawn and "inf" not in drawn
