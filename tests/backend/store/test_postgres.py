"""What several processes on one PostgreSQL server rely on."""

import threading
import time

import pytest

from backend.errors import ConfigError
from backend.gateway.event_tail import EventTail
from backend.store.database import Database
from backend.store.job_rows import append, job_row
from backend.store.postgres import AdvisoryLock
from backend.store.store import Store
from tinkergym.errors import ConflictError, InternalServiceError
from tinkergym.schema.events import JobState, WarningEvent
from tinkergym.schema.summaries import JobQuery

pytestmark = pytest.mark.service

OTHERS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'store'"


@pytest.fixture
def url(postgres_url):
    return postgres_url


@pytest.fixture
def other(store, url):
    """The store as another process has it open."""
    other = Store.open(url)
    yield other
    other.close()


def test_has_one_active_scheduler_at_a_time(store, other, postgres_server):
    first, second = store.service().scheduler_lock(), other.service().scheduler_lock()
    assert isinstance(first, AdvisoryLock)
    assert [first.held(), second.held(), first.held(), second.held()] == [True, False, True, False]
    postgres_server.execute(OTHERS)
    assert not first.held()  # It knows before its next tick that another one may be active.
    assert not second.held()
    deadline = time.monotonic() + 120
    while not second.held():  # The server frees a lock when the process of its connection has ended.
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
    assert not first.held()
    second.close()
    assert first.held()
    first.close()


def test_goes_on_after_the_server_ended_its_connections(store, spec, postgres_server):
    tenant = store.tenant("ada")
    job_id = tenant.create_job(spec, {}).job_id
    postgres_server.execute(OTHERS)
    assert [job.job_id for job in tenant.summaries(JobQuery()).jobs] == [job_id]
    postgres_server.execute(OTHERS)
    assert tenant.request_cancel(job_id).state is JobState.CANCELLED


def test_delivers_an_event_that_commits_after_a_later_one(store, url, spec):
    slow, quick = (store.tenant("ada").create_job(spec, {}).job_id for _ in range(2))
    before = store.last_seqs([slow, quick])
    late = Database(url)
    with late.write() as connection:
        row = job_row(connection, slow)
        append(connection, slow, row.last_seq, 1000.0, WarningEvent(name="slow", message=""))
        lease = store.service().acquire(quick, "w", 30, now=1000.0)
        store.service().append_event(lease, WarningEvent(name="quick", message=""))
        seen = store.last_seqs([slow, quick])
        assert (seen[slow], seen[quick]) == (before[slow], before[quick] + 2)
    assert store.last_seqs([slow])[slow] == before[slow] + 1
    assert store.tenant("ada").events_after(slow, seen[slow])[0].body.name == "slow"
    late.close()


def test_takes_one_job_for_one_key_sent_to_several_gateways(store, other, spec):
    start = threading.Barrier(4)
    made = []

    def create(of):
        start.wait()
        made.append(of.tenant("ada").create_job(spec, {}, "the-key").job_id)

    threads = [threading.Thread(target=create, args=(of,)) for of in (store, other) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
    assert len(set(made)) == 1
    with pytest.raises(ConflictError):
        other.tenant("ada").create_job(spec.model_copy(update={"steps": 9}), {}, "the-key")


def test_notices_commits_of_other_processes(store, other):
    key = store.keys.create("ada", "laptop")
    while other.commits() is None:
        pass  # Its listener is connecting.
    assert other.keys.tenant_of(key) == "ada"
    before = other.commits()
    store.keys.revoke(store.keys.id_of(key))
    while other.commits() == before:
        pass
    assert other.keys.tenant_of(key) is None


def test_keeps_texts_with_nul_and_counts_beyond_32_bits(store, spec):
    job_id = store.tenant("ada").create_job(spec, {}).job_id
    service = store.service()
    lease = service.acquire(job_id, "w", 30, now=1000.0)
    service.set_state(lease, JobState.FAILED, "it said \0")
    assert service.job(job_id).reason == "it said \N{REPLACEMENT CHARACTER}"
    assert not store.has_job("job-\0")
    service.register_pool("p1", "nano", "http://10.0.0.1:1", "token", 100.0)
    service.record_pool_memory({"p1": 2**40})
    assert service.pools(100.0)[0].memory_bytes == 2**40


def test_shows_event_tail_the_jobs_with_news(store, other, spec):
    job_id = other.tenant("ada").create_job(spec, {}).job_id
    tail = EventTail(store)
    assert tail.changed(frozenset([job_id])) == {job_id}
    other.tenant("ada").request_cancel(job_id)
    while not tail.changed(frozenset([job_id])):
        pass
    assert tail.changed(frozenset([job_id])) == set()


@pytest.mark.parametrize("part", ["/nowhere", "nobody"])
def test_says_in_one_sentence_why_a_server_refuses(postgres_server, part):
    url = postgres_server.url("store")
    url = url.replace("/store", part) if part.startswith("/") else url.replace("tinkergym@", "nobody:secret@")
    with pytest.raises(ConfigError) as refused:
        Store.open(url)
    assert refused.value.field == "database_url"
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_names_a_user_that_may_make_no_tables(postgres_server):
    postgres_server.execute("CREATE DATABASE closed")
    postgres_server.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC; CREATE ROLE weak LOGIN", "closed")
    with pytest.raises(ConfigError) as refused:
        Store.open(postgres_server.url("closed").replace("tinkergym@", "weak@"))
    assert refused.value.field == "database_url"


def test_hides_database_from_tenants_when_rights_are_lost(postgres_server):
    postgres_server.execute("CREATE DATABASE lost")
    postgres_server.execute("CREATE ROLE maker LOGIN; GRANT ALL ON SCHEMA public TO maker", "lost")
    store = Store.open(postgres_server.url("lost").replace("tinkergym@", "maker@"))
    postgres_server.execute("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM maker", "lost")
    with pytest.raises(InternalServiceError):
        store.keys.ensure_tenant("ada")
    store.close()


def test_says_that_nothing_answers():
    pytest.importorskip("psycopg")
    with pytest.raises(ConfigError) as refused:
        Store.open("postgresql://ada@127.0.0.1:1/tinkergym")
    assert refused.value.field == "database_url"
