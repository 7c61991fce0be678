import posixpath
import re
import sys
import types
from dataclasses import replace

import pytest

from tests.tinkergym.reporting.jobs import job_view, point
from tests.tinkergym.reporting.test_notes import evaluation, notes_of
from tinkergym.errors import InvalidRequestError
from tinkergym.reporting.trackers import callbacks_of
from tinkergym.schema.events import JobState


@pytest.fixture
def install(monkeypatch):
    def add(name, **contents):
        module = types.ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)

    return add


class Server:
    """A client of an MLflow server that has this history of one run."""

    def __init__(self, history=()):
        self.history, self.batches, self.status, self.files = list(history), [], None, {}
        self.refuses_files = False

    def __call__(self, **uris):
        assert set(uris.values()) == {"http://there"}
        return self

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        return "1"

    def search_runs(self, experiments, text, max_results):
        assert "job-1" in text
        run = types.SimpleNamespace(
            info=types.SimpleNamespace(run_id="run"),
            data=types.SimpleNamespace(tags={"tinkergym.last_note": "7"}),
        )
        return [run] if self.history else []

    def create_run(self, experiment, *, run_name, tags):
        assert tags["tinkergym.job_id"] == "job-1"
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="run"))

    def update_run(self, run_id, *, status):
        self.status = status

    def get_metric_history(self, run_id, key):
        return [types.SimpleNamespace(step=step) for step in self.history]

    def log_batch(self, run_id, *, metrics, tags=()):
        # As mlflow.utils.validation does.
        for name, *_ in metrics:
            assert re.fullmatch(r"[/\w.\- :]{1,250}", name), name
            assert posixpath.normpath(name) == name
            assert not name.startswith(("/", ".."))
        self.batches.append([*metrics, *tags])

    def log_dict(self, run_id, content, name):
        if self.refuses_files:
            raise OSError("no such bucket")
        self.files[name] = content

    def set_terminated(self, run_id, *, status):
        self.status = status


@pytest.mark.parametrize(("history", "last"), [([], 0), ([1, 2, 3], 3)])
def test_continues_jobs_mlflow_run_and_sends_point_in_one_call(install, monkeypatch, history, last):
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


def test_keeps_mlflow_note_under_number_and_marks_the_last(install, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://there")
    server = Server([1])
    install("mlflow", MlflowClient=server)
    install("mlflow.entities", Metric=lambda *values: values, RunTag=lambda *pair: pair)
    (tracker,) = callbacks_of("mlflow")
    tracker.begin(job_view())
    assert tracker.last_note() == 7
    (note,) = notes_of([evaluation(9, 4)])
    tracker.tell(note)
    assert list(server.files) == ["notes/00000009.json"]
    ((*metrics, tag),) = server.batches
    assert ("eval/held-out/mean", 0.5, 9000, 4) in metrics
    assert tag == ("tinkergym.last_note", "9")


def test_sends_names_that_mlflow_forbids_under_allowed_ones(install, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://there")
    server = Server()
    install("mlflow", MlflowClient=server)
    install("mlflow.entities", Metric=lambda *values: values, RunTag=lambda *pair: pair)
    (tracker,) = callbacks_of("mlflow")
    tracker.begin(job_view())
    odd = {"eval/math/Arithmetic-v0[digits=2]/mean": 1.0, "pass@1": 2.0, "pass_1": 3.0, "../a//b": 4.0}
    tracker.report(point(1, **odd, **{"long" * 100: 5.0, "long" * 101: 6.0}))
    (batch,) = server.batches
    sent = {name: value for name, value, *_ in batch}
    assert sent["eval/math/Arithmetic-v0_digits_2_/mean"] == 1.0
    assert (sent["pass_1"], sorted(sent.values())) == (2.0, [0.1, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    (note,) = notes_of([evaluation(9, 4)])
    tracker.tell(replace(note, values={"eval/held-out[n=3]/mean": 0.5}))
    assert server.batches[1][0][:2] == ("eval/held-out_n_3_/mean", 0.5)


def test_sends_numbers_to_a_server_that_takes_no_files(install, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://there")
    server = Server()
    server.refuses_files = True
    install("mlflow", MlflowClient=server)
    install("mlflow.entities", Metric=lambda *values: values, RunTag=lambda *pair: pair)
    (tracker,) = callbacks_of("mlflow")
    tracker.begin(job_view())
    notes = notes_of([evaluation(9, 4), evaluation(10, 8)])
    with pytest.warns(UserWarning, match="no such bucket"):
        tracker.tell(notes[0])
    tracker.tell(notes[1])
    assert [batch[-1] for batch in server.batches] == [
        ("tinkergym.last_note", "9"),
        ("tinkergym.last_note", "10"),
    ]


@pytest.mark.parametrize("uri", ["sqlite:///mlflow.db", "mlruns", "postgresql://db/mlflow", ""])
def test_gives_mlflow_no_database_and_no_folder(install, monkeypatch, uri):
    """Its client would be the server then, and migrate the database."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    install("mlflow", MlflowClient=None)
    with pytest.raises(InvalidRequestError) as refused:
        callbacks_of("mlflow")
    assert refused.value.field == "report_to"
