"""What is remembered is never out of date, whoever commits."""

import threading

import pytest

from backend.store.database import Database
from backend.store.read_cache import ReadCache
from backend.store.store import Store


@pytest.fixture
def url(sqlite_url):
    return sqlite_url


@pytest.fixture
def remembered(store):
    return ReadCache(store.commits)


class Reads:
    """Returns 1, 2, 3, ..."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> int:
        self.count += 1
        return self.count


def test_reads_value_once_until_somebody_commits(remembered, store, url):
    read = Reads()
    assert [remembered.get("x", read) for _ in range(3)] == [1, 1, 1]
    store.keys.ensure_tenant("carol")
    assert [remembered.get("x", read) for _ in range(2)] == [2, 2]
    other = Store.open(url)  # as another process of the service does
    other.keys.ensure_tenant("dan")
    assert remembered.get("x", read) == 3
    other.close()


def test_does_not_remember_what_a_read_raises(remembered):
    def fail():
        raise KeyError("not there")

    with pytest.raises(KeyError):
        remembered.get("x", fail)
    assert remembered.get("x", lambda: 7) == 7


def test_does_not_remember_reads_from_before_another_threads_commit(remembered, store):
    reading, seen = threading.Event(), threading.Event()

    def slow():
        reading.set()
        assert seen.wait(60.0)
        return "before"

    found = []
    thread = threading.Thread(target=lambda: found.append(remembered.get("x", slow)))
    thread.start()
    assert reading.wait(60.0)
    store.keys.ensure_tenant("carol")
    remembered.get("y", lambda: 0)  # sees the commit
    seen.set()
    thread.join(60.0)
    assert found == ["before"]
    assert remembered.get("x", lambda: "after") == "after"


def test_reads_everything_without_a_database_to_ask():
    nowhere = ReadCache(lambda: None)
    read = Reads()
    assert [nowhere.get("x", read) for _ in range(3)] == [1, 2, 3]


def test_voids_revoked_key_and_knows_new_pool_immediately(store, url):
    key = store.keys.create("ada", "laptop")
    assert store.keys.tenant_of(key) == "ada"
    other = Store.open(url)
    other.keys.revoke(other.keys.list("ada")[0].key_id)
    assert store.keys.tenant_of(key) is None
    assert store.service().pools(now=0.0) == []
    other.service().register_pool("p1", "nano", "/tmp/socket", "token", 0.0)
    assert [pool.pool_id for pool in store.service().pools(now=0.0)] == ["p1"]
    other.close()


def test_reads_what_nearly_every_request_asks_once(store, spec, monkeypatch):
    key = store.keys.create("ada", "laptop")
    job_id = store.tenant("ada").create_job(spec, {}).job_id
    store.service().register_pool("p1", "nano", "/tmp/socket", "token", 0.0)
    reads = Reads()
    read = Database.read
    monkeypatch.setattr(Database, "read", lambda database: [reads(), read(database)][1])
    for _ in range(3):
        assert store.keys.tenant_of(key) == "ada"
        assert store.tenant("ada").model_and_worker(job_id) == (spec.model, None)
        assert store.tenant("bob").model_and_worker(job_id) is None
        assert len(store.service().pools(now=0.0)) == 1
    assert reads.count == 4
    assert [store.keys.tenant_of("tg-made-up") for _ in range(2)] == [None, None]
    assert reads.count == 6
