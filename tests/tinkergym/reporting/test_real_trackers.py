"""Trackers against the real packages, offline: `make test-extras` runs these, where the packages are.

`make test` has none of them and skips it all; the tests of single trackers, such as
`test_mlflow_tracker.py`, are its small counterpart.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tinkergym.errors import InvalidRequestError

STEPS = 12

# Reports from where the tracker stands until this step, and is killed there, or ends.
_SCRIPT = """
import os, signal, sys
from tests.tinkergym.reporting.jobs import job_view, note, point
from tinkergym.reporting.trackers import callbacks_of
from tinkergym.schema.events import JobState

name, until, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
(tracker,) = callbacks_of(name)
last = tracker.begin(job_view())
told = tracker.last_note()
for step in range(1, until + 1):
    if step > last:
        tracker.report(point(step, loss=1.0 / step, step_time=0.5, **{"pass@1": 0.5}))
    if step > told:
        tracker.tell(note(step))
if how == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
tracker.end(JobState.COMPLETED if how == "end" else None)
print("had", min(last, told))
"""


def tensorboard_points(folder, env):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder / "runs" / "job-1"), size_guidance={"scalars": 0})
    accumulator.Reload()
    return [(one.step, one.value) for one in accumulator.Scalars("reward")]


def wandb_points(folder, env):
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    from tinkergym.reporting.row_trackers import _records

    found = []
    for path in sorted((folder / "wandb").glob("offline-run-*/run-job-1.wandb")):
        for content in _records(path.read_bytes()):
            record = Record()
            record.ParseFromString(content)
            if record.WhichOneof("record_type") == "history":
                values = {"/".join(item.nested_key) or item.key: item for item in record.history.item}
                if "reward" in values:  # the last row holds notes only
                    found.append((record.history.step.num, float(values["reward"].value_json)))
    return found


def trackio_points(folder, env):
    pytest.importorskip("trackio")
    code = (
        "from trackio.sqlite_storage import SQLiteStorage as s\n"
        "logs = s.get_logs('tinkergym', 'job-1')\n"
        "print([(one['step'], one['reward']) for one in logs if 'reward' in one])"
    )
    return eval(run([sys.executable, "-c", code], folder, env).stdout)  # what this very line printed


def mlflow_points(folder, env):
    # In a process of its own: its client keeps connections open.
    code = (
        "from mlflow import MlflowClient\n"
        "client = MlflowClient()\n"
        "experiment = client.get_experiment_by_name('tinkergym')\n"
        "(found,) = client.search_runs([experiment.experiment_id])\n"
        "history = client.get_metric_history(found.info.run_id, 'reward')\n"
        "print([(one.step, one.value) for one in history])"
    )
    return eval(run([sys.executable, "-c", code], folder, env).stdout)  # what this very line printed


POINTS = {
    "tensorboard": tensorboard_points,
    "wandb": wandb_points,
    "trackio": trackio_points,
    "mlflow": mlflow_points,
}


def run(command, folder, env, check=True):
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=200, check=check
    )


@contextlib.contextmanager
def mlflow_server(folder):
    """A tracking server with a database of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{folder}/server.db", "--workers", "1"]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=2):
                break
            assert server.poll() is None and time.monotonic() < deadline, (folder / "server.log").read_text()
            time.sleep(0.2)
        yield url
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.fixture
def environment(request, tmp_path):
    """The variables with which a tracker of this name stays offline and in `tmp_path`."""
    name = request.param
    pytest.importorskip(name)
    env = os.environ | {
        "PYTHONPATH": str(Path.cwd()),
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "HF_HUB_OFFLINE": "1",
    }
    with contextlib.ExitStack() as stack:
        if name == "mlflow":
            env["MLFLOW_TRACKING_URI"] = stack.enter_context(mlflow_server(tmp_path))
        yield name, env


@pytest.mark.parametrize("environment", sorted(POINTS), indirect=True)
def test_tracks_every_point_once_after_kills_detach_and_end(environment, tmp_path):
    name, env = environment
    for until, how in ((3, "kill"), (7, "detach"), (9, "kill"), (STEPS, "end")):
        done = run([sys.executable, "-c", _SCRIPT, name, str(until), how], tmp_path, env, check=False)
        assert done.returncode == (-signal.SIGKILL if how == "kill" else 0), done.stderr
    assert sorted(POINTS[name](tmp_path, env)) == [
        (step, pytest.approx(step / 10, rel=1e-6)) for step in range(1, STEPS + 1)
    ]
    done = run([sys.executable, "-c", _SCRIPT, name, str(STEPS), "end"], tmp_path, env)
    assert f"had {STEPS}" in done.stdout


def test_never_opens_a_users_database_of_mlflow(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    from tinkergym.reporting import MlflowTracker

    database = tmp_path / "old.db"
    run(
        [sys.executable, "-m", "mlflow", "db", "upgrade", f"sqlite:///{database}"], tmp_path, dict(os.environ)
    )
    before = database.read_bytes()
    monkeypatch.chdir(tmp_path)
    for uri in (f"sqlite:///{database}", str(tmp_path / "mlruns"), None):
        with pytest.raises(InvalidRequestError) as refused:
            MlflowTracker(uri)
        assert refused.value.field == "report_to"
    assert database.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old.db"]
