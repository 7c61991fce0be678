import subprocess
import sys
import tempfile
import tracemalloc

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from backend.errors import LeaseLostError
from backend.store.store import Store
from tinkergym.errors import NotFoundError
from tinkergym.schema.events import JobState, StateEvent, WarningEvent
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec


@pytest.fixture
def job_id(store, spec):
    return store.tenant("ada").create_job(spec, {}).job_id


def states(store, job_id):
    return [
        event.body.state
        for event in store.tenant("ada").events_after(job_id, 0)
        if isinstance(event.body, StateEvent)
    ]


def test_takes_queued_job_with_everything_its_worker_needs(store, spec, job_id):
    service = store.service()
    assert [job.job_id for job in service.queued_jobs()] == [job_id]
    lease = service.acquire(job_id, "pool-1", 30, now=100)
    assert (lease.spec, lease.tenant_id, lease.attempt, lease.expires_at) == (spec, "ada", 1, 130)
    assert service.queued_jobs() == []
    assert service.job(job_id).state == "starting"
    assert store.tenant("ada").get_job_and_worker(job_id)[1] == "pool-1"


def test_reads_queue_without_what_makes_specs_large(store, spec, job_id):
    large = EnvironmentRef(id="e", kwargs={"words": ["word"] * 20_000})
    other = spec.model_copy(update={"environment": large, "model": "some/model"})
    store.tenant("bob").create_job(other, {})
    service = store.service()
    service.queued_jobs()
    tracemalloc.start()
    try:
        waiting = service.queued_jobs()
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [(job.tenant_id, job.model, job.created_at) for job in waiting] == [
        ("ada", "nano", 1000.0),
        ("bob", "some/model", 1000.0),
    ]
    assert most_bytes < 100_000


def test_denies_job_that_is_held_or_unknown(store, job_id):
    service = store.service()
    service.acquire(job_id, "w1", 30, now=100)
    assert service.acquire(job_id, "w2", 30, now=129) is None
    assert service.acquire("job-never", "w2", 30, now=129) is None
    with pytest.raises(NotFoundError):
        service.job("job-never")


def test_rejects_writes_of_silent_worker_once_another_has_the_job(store, job_id):
    service = store.service()
    silent = service.acquire(job_id, "w1", 30, now=100)
    taker = service.acquire(job_id, "w2", 30, now=130)
    assert (taker.attempt, taker.epoch > silent.epoch) == (2, True)
    writes = [
        lambda: service.renew(silent, 30, now=131),
        lambda: service.set_state(silent, JobState.RUNNING),
        lambda: service.append_event(silent, WarningEvent(name="n", message="m")),
        lambda: service.append_events(silent, [WarningEvent(name="n", message="m")]),
        lambda: service.save_episodes(silent, 1, []),
        lambda: service.discard_episodes(silent, through_step=1),
        lambda: service.remove_checkpoint(silent, 1),
    ]
    for write in writes:
        with pytest.raises(LeaseLostError):
            write()
    service.release(silent)
    assert store.tenant("ada").get_job_and_worker(job_id)[1] == "w2"


def test_rejects_workers_old_lease_after_it_took_job_again(store, job_id):
    service = store.service()
    old = service.acquire(job_id, "w1", 30, now=100)
    service.acquire(job_id, "w1", 30, now=200)
    with pytest.raises(LeaseLostError):
        service.set_state(old, JobState.RUNNING)


def test_keeps_job_that_nobody_took_by_late_heartbeat(store, job_id):
    service = store.service()
    lease = service.acquire(job_id, "w1", 30, now=100)
    assert service.jobs_with_expired_lease(140) == [job_id]
    assert service.renew(lease, 30, now=140).expires_at == 170
    assert service.jobs_with_expired_lease(140) == []
    assert service.requeue_expired(140) == []


def test_requeues_the_jobs_of_silent_workers(store, job_id):
    service = store.service()
    lease = service.acquire(job_id, "w1", 30, now=100)
    assert service.requeue_expired(131) == [job_id]
    with pytest.raises(LeaseLostError):
        service.renew(lease, 30, now=132)
    assert service.job(job_id).state == "queued"
    assert "lease ran out" in service.job(job_id).reason
    assert service.acquire(job_id, "w2", 30, now=132).attempt == 2


def test_ends_returned_job_whose_worker_had_not_seen_the_cancellation(store, job_id):
    service = store.service()
    lease = service.acquire(job_id, "w1", 30, now=100)
    store.tenant("ada").request_cancel(job_id)
    service.release(lease)
    assert states(store, job_id) == ["queued", "starting", "cancelled"]


def test_ends_job_whose_dead_worker_never_saw_the_cancellation(store, job_id):
    service = store.service()
    service.acquire(job_id, "w1", 30, now=100)
    store.tenant("ada").request_cancel(job_id)
    assert service.requeue_expired(131) == []
    assert states(store, job_id) == ["queued", "starting", "cancelled"]


def test_ends_a_job_exactly_once(store, job_id):
    service = store.service()
    lease = service.acquire(job_id, "w1", 30, now=100)
    service.set_state(lease, JobState.COMPLETED)
    with pytest.raises(LeaseLostError):
        service.set_state(lease, JobState.FAILED)
    assert not service.finish_unleased(job_id, JobState.FAILED, "late")
    assert service.acquire(job_id, "w2", 30, now=999) is None
    assert service.requeue_expired(999) == []
    assert states(store, job_id) == ["queued", "starting", "completed"]


def test_ends_a_job_without_a_worker_but_none_with(store, job_id):
    service = store.service()
    service.acquire(job_id, "w1", 30, now=1000)
    assert not service.finish_unleased(job_id, JobState.FAILED, "no")
    service.requeue_expired(1031)
    assert service.finish_unleased(job_id, JobState.FAILED, "no worker can run it")
    assert service.job(job_id).reason == "no worker can run it"


def test_keeps_returned_job_waiting_for_the_next_worker(store, job_id):
    service = store.service()
    service.release(service.acquire(job_id, "w1", 30, now=100))
    assert service.job(job_id).state == "queued"
    assert service.acquire(job_id, "w2", 30, now=100)


CLAIM = """
import functools, sys
from backend.store.store import Store

service = functools.cache(lambda url: Store.open(url).service())
for line in sys.stdin:
    url, job_id = line.split()
    lease = service(url).acquire(job_id, f"w{sys.argv[1]}", 30, 100)
    print("got" if lease else "late", flush=True)
"""


@pytest.fixture(
    scope="module",
    params=[(2, 40), pytest.param((4, 200), marks=pytest.mark.full("rounds enough to see a rare race"))],
    ids=["2", "4"],
)
def claims(request):
    """Processes that try to take the jobs they are told of, in any database; and how many jobs to tell."""
    processes, rounds = request.param
    started = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIM, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    yield started, rounds
    for claim in started:
        claim.communicate()


@pytest.mark.service
def test_lets_exactly_one_of_several_processes_claim_a_job(claims, url, store, spec):
    processes, rounds = claims
    results = []
    for _ in range(rounds):
        job_id = store.tenant("ada").create_job(spec, {}).job_id
        for claim in processes:
            claim.stdin.write(f"{url} {job_id}\n")
            claim.stdin.flush()
        results.append(sorted(claim.stdout.readline() for claim in processes))
    assert results == [["got\n", *["late\n"] * (len(processes) - 1)]] * rounds


WORKERS = st.sampled_from(["w1", "w2", "w3"])


class LeasesUnderFire(RuleBasedStateMachine):
    """Workers that take, keep, lose and finish a job in any order, against what may happen at most."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = Store.open(f"sqlite:///{self.folder.name}/s.db")
        self.store.keys.ensure_tenant("ada")
        spec = RLSpec(environment=EnvironmentRef(id="e"), steps=1)
        self.job_id = self.store.tenant("ada").create_job(spec, {}).job_id
        self.service = self.store.service()
        self.now = 100.0
        self.held = {}  # worker -> the last lease it was given
        self.holder = None
        self.acknowledged = 1
        self.ended = 0

    def teardown(self):
        self.store.close()
        self.folder.cleanup()

    @rule(seconds=st.sampled_from([1.0, 31.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @rule(worker=WORKERS)
    def take(self, worker):
        lease = self.service.acquire(self.job_id, worker, 30, self.now)
        if lease is not None:
            self.held[worker], self.holder = lease, worker
            self.acknowledged += 1

    @rule()
    def requeue(self):
        if self.service.requeue_expired(self.now):
            self.holder = None
            self.acknowledged += 1

    @rule(worker=WORKERS, final=st.booleans())
    def write(self, worker, final):
        if worker not in self.held:
            return
        try:
            self.service.set_state(self.held[worker], JobState.COMPLETED if final else JobState.RUNNING)
        except LeaseLostError:
            assert worker != self.holder
            return
        assert worker == self.holder
        self.acknowledged += 1
        if final:
            self.ended += 1
            self.holder = None

    @invariant()
    def what_was_acknowledged_is_there_and_the_job_ended_at_most_once(self):
        log = self.store.tenant("ada").events_after(self.job_id, 0)
        assert [event.seq for event in log] == list(range(1, self.acknowledged + 1))
        assert sum(event.body.state.final for event in log) == self.ended <= 1


TestLeasesUnderFire = LeasesUnderFire.TestCase
TestLeasesUnderFire.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
