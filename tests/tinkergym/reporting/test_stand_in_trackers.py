"""Trackers against small stand-ins of their packages, which are not installed for `make test`.

The stand-ins show how the packages are called, not that they work so: `test_real_trackers.py` does.
"""

import sys
import types

import pytest

from tests.tinkergym.reporting.jobs import job_view, point
from tinkergym.errors import InvalidRequestError, MissingExtraError
from tinkergym.reporting.trackers import callbacks_of
from tinkergym.schema.events import JobState

NAMES = ["mlflow", "tensorboard", "trackio", "wandb"]


@pytest.fixture
def install(monkeypatch):
    def add(name, **contents):
        module = types.ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)

    return add


@pytest.mark.parametrize("name", NAMES)
def test_a_package_that_is_missing_is_named(name, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError) as missing:
        callbacks_of(name)
    assert f"pip install {name}" in missing.value.hint


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


@pytest.mark.parametrize(("resumed", "next_step", "last"), [(False, 0, 0), (True, 8, 7)])
def test_wandb_online_says_which_step_comes_next(install, tmp_path, monkeypatch, resumed, next_step, last):
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


def test_trackio_says_its_last_step_before_it_begins(install):
    runs = []
    storage = types.SimpleNamespace(get_max_step_for_run=lambda project, name: None if runs else 4)
    install("trackio", init=lambda **settings: runs.append(Run(**settings)) or runs[-1])
    install("trackio.sqlite_storage", SQLiteStorage=storage)
    (tracker,) = callbacks_of("trackio")
    assert tracker.begin(job_view()) == 4
    tracker.report(point(5))
    tracker.end(None)
    assert runs[0].settings["name"] == "job-1"
    assert runs[0].points == [(5, {"reward": 0.5})]
    assert runs[0].ended is not None


class Server:
    """A client of an MLflow server that has this history of one run."""

    def __init__(self, history=()):
        self.history, self.batches, self.status = list(history), [], None

    def __call__(self, **uris):
        assert set(uris.values()) == {"http://there"}
        return self

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        return "1"

    def search_runs(self, experiments, text, max_results):
        assert "job-1" in text
        return [types.SimpleNamespace(info=types.SimpleNamespace(run_id="run"))] if self.history else []

    def create_run(self, experiment, *, run_name, tags):
        assert tags["tinkergym.job_id"] == "job-1"
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="run"))

    def update_run(self, run_id, *, status):
        self.status = status

    def get_metric_history(self, run_id, key):
        return [types.SimpleNamespace(step=step) for step in self.history]

    def log_batch(self, run_id, *, metrics):
        self.batches.append(metrics)

    def set_terminated(self, run_id, *, status):
        self.status = status


@pytest.mark.parametrize(("history", "last"), [([], 0), ([1, 2, 3], 3)])
def test_mlflow_goes_on_with_the_jobs_run_and_sends_a_point_as_one_call(install, monkeypatch, history, last):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://there")
    server = Server(history)
    install("mlflow", MlflowClient=server)
    install("mlflow.entities", Metric=lambda *values: values)
    (tracker,) = callbacks_of("mlflow")
    assert tracker.begin(job_view()) == last
    tracker.report(point(4, loss=0.5))
    tracker.end(JobState.CANCELLED)
    assert server.batches == [[("reward", 0.4, 104_000, 4), ("loss", 0.5, 104_000, 4)]]
    assert server.status == "KILLED"


@pytest.mark.parametrize("uri", ["sqlite:///mlflow.db", "mlruns", "postgresql://db/mlflow", ""])
def test_mlflow_is_given_no_database_and_no_folder(install, monkeypatch, uri):
    """Its client would be the server then, and migrate the database."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    install("mlflow", MlflowClient=None)
    with pytest.raises(InvalidRequestError) as refused:
        callbacks_of("mlflow")
    assert refused.value.field == "report_to"
