"""Which databases are opened, upgraded or refused, and that an upgraded one is like a new one."""

import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from backend.errors import ConfigError
from backend.store import migrations
from backend.store.schema_version import HEAD
from backend.store.store import Store
from backend.store.tables import metadata
from tinkergym.schema.events import JobState

FIRST_SCHEMA = Path(__file__).with_name("schema_0011.sql")


@pytest.fixture
def old_file(tmp_path):
    """A database of the first schema with two jobs, one of which a worker holds."""
    file = tmp_path / "store.sqlite3"
    with sqlite3.connect(file) as connection:
        connection.executescript(FIRST_SCHEMA.read_text())
    return file


def revise(url, server, revision):
    """Let a database be of another revision."""
    statement = f"UPDATE alembic_version SET version_num = '{revision}'"
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            connection.execute(statement)
    else:
        server.execute(statement, "store")


def refuses(url):
    with pytest.raises(ConfigError) as caught:
        Store.open(url)
    return caught.value.field == "database_url"


@pytest.mark.parametrize("revision", ["0001", "0999"])
def test_refuses_the_database_of_another_version(store, url, sqlite_url, request, revision):
    store.close()
    server = None if url == sqlite_url else request.getfixturevalue("postgres_server")
    revise(url, server, revision)
    try:
        assert refuses(url)
        assert refuses(url)  # It is left alone.
    finally:
        revise(url, server, HEAD)


def test_refuses_databases_from_before_the_first_schema(old_file):
    with sqlite3.connect(old_file) as connection:
        connection.execute("UPDATE schema_version SET version = 10")
    assert refuses(f"sqlite:///{old_file}")


@pytest.mark.service
def test_upgrades_a_shared_database_only_on_request(store, postgres_url, postgres_server):
    store.close()
    revise(postgres_url, postgres_server, "0011")
    try:
        assert refuses(postgres_url)
    finally:
        revise(postgres_url, postgres_server, HEAD)


def test_upgrades_a_file_on_request_and_keeps_its_jobs(old_file):
    assert refuses(f"sqlite:///{old_file}")
    store = Store.open(f"sqlite:///{old_file}", upgrade=True)
    service = store.service()
    assert [(job.job_id, job.model) for job in service.queued_jobs()] == [("job-2", "nano-vl")]
    assert [held.job_id for held in service.held_jobs()] == ["job-1"]
    assert [event.seq for event in store.tenant("ada").events_after("job-1", 0)] == [1, 2, 3]
    lease = service.acquire("job-1", "w2", 30, now=2000.0)
    service.set_state(lease, JobState.COMPLETED)
    assert store.last_seqs(["job-1", "job-2"]) == {"job-1": 5, "job-2": 1}
    store.close()
    Store.open(f"sqlite:///{old_file}").close()


def test_makes_an_upgraded_file_like_a_new_one(old_file):
    Store.open(f"sqlite:///{old_file}", upgrade=True).close()
    engine = create_engine(f"sqlite:///{old_file}")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_knows_the_newest_revision():
    assert ScriptDirectory(str(Path(migrations.__file__).parent)).get_current_head() == HEAD
