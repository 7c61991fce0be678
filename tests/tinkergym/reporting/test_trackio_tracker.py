import sys
import types

import pytest

from tests.tinkergym.reporting.jobs import job_view, point
from tinkergym.reporting.trackers import callbacks_of


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
        vars(self).update(settings.pop("known", {}))

    def log(self, values, *, step, commit=True):
        self.points.append((step, values))

    def finish(self, exit_code=0):
        self.ended = exit_code


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
