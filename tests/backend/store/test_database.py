"""What the store promises when the machine misbehaves: full disks, locks, kills, strange files."""

import resource
import sqlite3
import subprocess
import sys

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from backend.errors import ConfigError
from backend.store import sqlite_file
from backend.store.store import Store
from tinkergym.errors import InternalServiceError, ServiceUnavailableError, StorageFullError
from tinkergym.schema.summaries import JobQuery


@pytest.fixture
def url(sqlite_url):
    return sqlite_url


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("mysql://host/db", "only sqlite and postgresql are"),
        ("sqlite://", "a shared file"),
        ("sqlite:///:memory:", "a shared file"),
        ("nonsense", "not a database URL"),
        ("sqlite:////proc/nowhere/store.db", "cannot be created"),
    ],
)
def test_rejects_database_that_cannot_serve_in_one_sentence(url, text):
    with pytest.raises(ConfigError, match=text) as caught:
        Store.open(url)
    assert caught.value.field == "database_url"


def test_names_full_disk_and_keeps_what_was_saved(store, url, spec):
    def few_pages(connection, _record):
        connection.execute("PRAGMA max_page_count = 45")

    kept = store.tenant("ada").create_job(spec, {}).job_id
    event.listen(Engine, "connect", few_pages)
    try:
        cramped = Store.open(url).tenant("ada")
        with pytest.raises(StorageFullError):
            for _ in range(500):
                cramped.create_job(spec, {})
    finally:
        event.remove(Engine, "connect", few_pages)
    jobs = store.tenant("ada").summaries(JobQuery(limit=500)).jobs
    assert jobs[-1].job_id == kept
    assert len(jobs) < 500
    assert store.tenant("ada").create_job(spec, {}).state == "queued"


def test_names_the_database_whose_disk_fails(store, url, spec, tmp_path):
    tenant = Store.open(url).tenant("ada")
    tenant.create_job(spec, {})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        with pytest.raises(InternalServiceError, check=lambda error: error.code == "unusable_file"):
            tenant.create_job(spec, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(tenant.summaries(JobQuery()).jobs) == 1


def test_calls_locked_database_unavailable_and_not_broken(store, url, spec, monkeypatch, tmp_path):
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_SECONDS", 0.01)
    waiting = Store.open(url)
    other = sqlite3.connect(tmp_path / "store.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(ServiceUnavailableError):
        waiting.tenant("ada").create_job(spec, {})
    assert waiting.tenant("ada").summaries(JobQuery()).jobs == []  # reading goes on
    other.execute("ROLLBACK")
    assert waiting.tenant("ada").create_job(spec, {}).state == "queued"


def test_names_file_that_is_no_database(tmp_path):
    file = tmp_path / "letter.txt"
    file.write_text("Dear database, " * 500)
    with pytest.raises(InternalServiceError, check=lambda error: error.code == "not_a_database"):
        Store.open(f"sqlite:///{file}")


@pytest.mark.service
def test_loses_nothing_acknowledged_by_a_killed_writer(store, url, spec):
    script = (
        "import sys; from backend.store.store import Store\n"
        "from tinkergym.schema.events import WarningEvent\n"
        "service = Store.open(sys.argv[1]).service()\n"
        "lease = service.acquire(sys.argv[2], 'w', 30, 100)\n"
        "while True:\n"
        "    print(service.append_event(lease, WarningEvent(name='n', message='m' * 2000)).seq, flush=True)\n"
    )
    job_id = store.tenant("ada").create_job(spec, {}).job_id
    with subprocess.Popen(
        [sys.executable, "-c", script, url, job_id], stdout=subprocess.PIPE, text=True
    ) as writer:
        for _ in range(40):
            writer.stdout.readline()
        writer.kill()
        acknowledged = [int(line) for line in writer.stdout if line.endswith("\n")]
    written = [entry.seq for entry in store.tenant("ada").events_after(job_id, 0, limit=10_000)]
    assert written == list(range(1, len(written) + 1))
    assert len(written) >= max(acknowledged, default=42)
    # The next worker goes on where it stopped.
    assert store.service().acquire(job_id, "w2", 30, now=200).attempt == 2
