import sys
import types

import pytest

from tests.tinkergym.reporting.jobs import job_view, point
from tests.tinkergym.reporting.test_notes import episode, evaluation, notes_of
from tinkergym.reporting.trackers import callbacks_of
from tinkergym.schema.events import JobState


@pytest.fixture
def install(monkeypatch):
    def add(name, **contents):
        module = types.ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)

    return add


class Run:
    """A run of wandb or of trackio."""

    def __init__(self, **settings):
        self.offline, self.resumed, self.step = False, False, 0
        self.settings, self.points, self.ended = settings, [], None
        self.summary = {}
        vars(self).update(settings.pop("known", {}))

    def log(self, values, *, step, commit=True):
        self.points.append((step, values))

    def finish(self, exit_code=0):
        self.ended = exit_code


@pytest.mark.parametrize(("resumed", "next_step", "last"), [(False, 0, 0), (True, 8, 7)])
def test_says_which_step_comes_next_in_online_wandb(install, tmp_path, monkeypatch, resumed, next_step, last):
    monkeypatch.chdir(tmp_path)
    made = []

    def init(**settings):
        made.append(Run(**settings, known={"resumed": resumed, "step": next_step}))
        return made[-1]

    install("wandb", init=init)
    (tracker,) = callbacks_of("wandb")
    assert tracker.begin(job_view()) == last
    tracker.report(point(last + 1))
    tracker.end(JobState.FAILED)
    (run,) = made
    assert (run.settings["id"], run.settings["resume"]) == ("job-1", "allow")
    assert run.settings["config"]["steps"] == 5
    assert [step for step, _ in run.points] == [last + 1]
    assert run.ended == 1


def test_sends_wandb_notes_with_next_point_and_rest_finally(install, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = []
    known = {"resumed": True, "step": 2, "summary": {"notes/seq": 3}}
    install(
        "wandb",
        init=lambda **settings: made.append(Run(**settings, known=known)) or made[-1],
        Table=lambda columns, data: (columns, data),
    )
    (tracker,) = callbacks_of("wandb")
    assert (tracker.begin(job_view()), tracker.last_note()) == (1, 3)
    completion, last = notes_of([episode(8, 1), evaluation(11, 2)])
    tracker.tell(completion)
    tracker.report(point(2))
    tracker.tell(last)
    tracker.end(JobState.COMPLETED)
    (step, row), (after, rest) = made[0].points
    assert (step, after) == (2, 3)
    assert row["reward"] == 0.2
    assert row["notes/seq"] == 8
    assert row["completions"][1][0][:2] == [1, 0.5]
    assert (rest["eval/held-out/mean"], rest["eval/step"], rest["notes/seq"]) == (0.5, 2, 11)


def test_says_last_step_of_a_trackio_run_before_it_begins(install):
    runs = []
    storage = types.SimpleNamespace(
        get_max_step_for_run=lambda project, name: None if runs else 4,
        get_logs=lambda project, name: [{"step": 3, "notes/seq": 6}, {"step": 4}],
    )
    install("trackio", init=lambda **settings: runs.append(Run(**settings)) or runs[-1])
    install("trackio.sqlite_storage", SQLiteStorage=storage)
    (tracker,) = callbacks_of("trackio")
    assert tracker.begin(job_view()) == 4
    assert tracker.last_note() == 6
    tracker.report(point(5))
    tracker.end(None)
    assert runs[0].settings["name"] == "job-1"
    assert runs[0].points == [(5, {"reward": 0.5})]
    assert runs[0].ended is not None
