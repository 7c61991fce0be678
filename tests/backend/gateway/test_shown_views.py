"""What clients see of the machine, and of a service whose disk is full or read-only."""

import errno
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from backend.config import ServiceConfig
from backend.machine_paths import MachinePaths
from tinkergym.errors import InvalidEnvironmentError
from tinkergym.schema.events import CheckpointEvent, CheckpointView, ErrorView, JobState, WarningEvent

pytestmark = pytest.mark.service


def everything_about(client, job_id):
    paths = (f"/v1/jobs/{job_id}", "/v1/jobs", f"/v1/jobs/{job_id}/checkpoints", f"/v1/jobs/{job_id}/events")
    return "".join(client.get(path).text for path in paths)


@pytest.mark.parametrize("tenant", ["ada", "owner"])
def test_shows_paths_to_the_owner_of_machine_only(gateway, spec, tenant):
    data, python = str(gateway.config.data_dir), str(Path(sys.prefix).resolve())
    service = gateway.store.service()
    with gateway.client(tenant) as client:
        job_id = client.post("/v1/jobs", json=spec).json()["job_id"]
        lease = service.acquire(job_id, "w", 30, now=0)
        folder = f"{data}/jobs/{job_id}/checkpoints/step-000001"
        service.add_checkpoint(
            lease, CheckpointView(step=1, policy_version=1, path=folder, sha256="0" * 64, files={})
        )
        service.append_event(lease, CheckpointEvent(step=1, policy_version=1, path=folder, sha256="0" * 64))
        service.append_event(lease, WarningEvent(name="n", message=f'File "{python}/lib/pack/env.py"'))
        error = ErrorView(type="StorageFullError", message=f"no space in {folder}", hint=f"see {data}/logs")
        service.set_state(lease, JobState.FAILED, f"no space in {folder}", error)
        seen = everything_about(client, job_id)
        gateway.check.refusal = InvalidEnvironmentError(f"reset failed in {python}/lib/pack/env.py")
        seen += client.post("/v1/jobs", json=spec).text
    shown = tenant == "owner"
    assert (data in seen, python in seen) == (shown, shown)
    # What lies where within them helps whoever reads it.
    assert seen.count("/checkpoints/step-000001") == 8
    assert seen.count("/lib/pack/env.py") == 2


@pytest.mark.parametrize(("folder", "name"), [("elsewhere", "DATABASE"), ("data", "DATA")])
def test_hides_where_the_database_lies_too(tmp_path, folder, name):
    database = tmp_path / folder / "jobs.sqlite3"
    config = ServiceConfig(data_dir=tmp_path / "data", database_url=f"sqlite:///{database}")
    text = f"no space is left for the database {database}"
    hidden = MachinePaths(config).hidden_in(text)
    assert hidden == f"no space is left for the database <{name}>/jobs.sqlite3"


def a_full_disk(monkeypatch):
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))


def a_read_only_disk(monkeypatch):
    def refuse(**arguments):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)


@pytest.mark.parametrize(("disk", "text"), [(a_full_disk, "is full"), (a_read_only_disk, "Read-only")])
def test_names_a_disk_that_takes_nothing_in_job(client, spec, monkeypatch, disk, text):
    job_id = client.post("/v1/jobs", json=spec).json()["job_id"]
    disk(monkeypatch)
    assert text in client.get(f"/v1/jobs/{job_id}").json()["reason"]
    # A certificate's facts agree with its events.
    assert client.get(f"/v1/jobs/{job_id}/facts").json()["facts"]["job"]["reason"] == ""
    # All else seems silent: nothing can record its heartbeat.
    assert client.get("/v1/health").json()["waiting_for"] == ["disk"]
    monkeypatch.undo()
    assert client.get(f"/v1/jobs/{job_id}").json()["reason"] == ""
