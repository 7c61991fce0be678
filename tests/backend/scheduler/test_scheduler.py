from __future__ import annotations

import time

import pytest

from backend.errors import ConfigError
from backend.external.environment_tokens import fetch, put_away
from backend.scheduler.process_runner import EnvWorkerEnded, EnvWorkersSeen, PoolEnded, PoolReady, Running
from backend.store.service_parts import lost_pools
from tinkergym.errors import ServiceUnavailableError, UnknownModelError
from tinkergym.schema.events import CheckpointEvent, JobState
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import Train


def test_gives_preloaded_models_a_pool_and_workers_before_any_job(world):
    world.scheduler.tick()
    assert list(world.workers.pools.values()) == ["nano"]
    assert list(world.workers.env_workers.values()) == list(world.workers.pools)


def test_sleeps_while_nothing_changes(world):
    world.pool()
    world.scheduler.tick()
    world.scheduler.tick()  # Knows of what the first one wrote.
    assert not world.scheduler.due()


def test_wakes_for_commit_change_and_time(world):
    pool_id = world.pool()
    for wakes in (
        world.submit,
        lambda: world.workers.news.append(PoolEnded(pool_id=pool_id)),
        lambda: setattr(world.monotonic, "now", world.monotonic.now + 1.0),
    ):
        world.scheduler.tick()
        world.scheduler.tick()
        assert not world.scheduler.due()
        wakes()
        assert world.scheduler.due()


def test_looks_every_five_seconds_while_there_is_no_job(world):
    world.pool()
    world.scheduler.tick()
    world.scheduler.tick()
    world.let_pass(4.0)
    assert not world.scheduler.due()
    world.let_pass(2.0)
    assert world.scheduler.due()
    world.workers.weights["nano"] = 2
    world.scheduler.tick()
    # What it has written itself, such as the pools' memory, is no reason to look again.
    assert not world.scheduler.due()


def test_sends_queued_job_to_its_models_pool_once_ready(world):
    job_id = world.submit()
    pool_id = world.pool()
    assert world.workers.started == []
    world.scheduler.tick()
    assert world.workers.started == [(pool_id, job_id)]


def test_places_a_job_once_unless_nothing_came_of_it(world):
    job_id = world.submit()
    pool_id = world.pool()
    for _ in range(3):
        world.scheduler.tick()
    assert world.workers.started == [(pool_id, job_id)]
    world.clock.now += 10.0
    world.service.touch_pool(pool_id, world.clock.now)
    world.scheduler.tick()
    assert world.workers.started == [(pool_id, job_id)] * 2


def test_starts_pool_of_another_model_for_its_job(world):
    world.submit(model="some/model")
    world.scheduler.tick()
    assert set(world.workers.pools.values()) == {"nano", "some/model"}


def test_gives_pool_to_model_that_somebody_wants_to_sample(make_world):
    world = make_world(preload=[])
    world.scheduler.tick()
    assert world.workers.pools == {}
    world.service.want_pool("nano", world.clock.now)
    world.scheduler.tick()
    assert list(world.workers.pools.values()) == ["nano"]


def test_ends_unneeded_pool_unless_it_is_preloaded(world):
    world.service.want_pool("some/model", world.clock.now)
    kept, idle = world.pool("nano"), world.pool("some/model")
    world.scheduler.tick()
    for _ in range(8):
        world.clock.now += 100.0
        for pool_id in (kept, idle):
            world.service.touch_pool(pool_id, world.clock.now)
        world.scheduler.tick()
    assert list(world.workers.pools) == [kept]


def test_keeps_pool_that_is_sampled_or_has_a_job(world):
    world.service.want_pool("sampled", world.clock.now)
    sampled, busy = world.pool("sampled"), world.pool("nano")
    job_id = world.submit(model="other")
    busy = world.pool("other")
    world.scheduler.tick()
    lease = world.acquire(job_id, busy)
    for _ in range(8):
        world.clock.now += 100.0
        lease = world.service.renew(lease, world.config.lease_seconds, world.clock.now)
        world.service.want_pool("sampled", world.clock.now)
        for pool_id in world.workers.pools:
            world.service.touch_pool(pool_id, world.clock.now)
        world.scheduler.tick()
    assert {sampled, busy} <= set(world.workers.pools)


def test_removes_environment_servers_token_soon_after_its_job_ended(world):
    remote = EnvironmentRef(id="tinkergym/Remote-v0", kwargs={"url": "wss://e.org", "token": "a-secret"})
    world.store.keys.ensure_tenant("ada")
    ada = world.store.tenant("ada")
    stored = put_away(remote, ada)
    job_id = ada.create_job(RLSpec(environment=stored, steps=1), {}).job_id
    world.clock.now = time.time() + 1000
    world.scheduler.tick()
    assert fetch(stored, world.service.secret) == remote
    ada.request_cancel(job_id)
    world.clock.now += 10
    world.scheduler.tick()
    with pytest.raises(ConfigError, check=lambda error: error.field == "token"):
        fetch(stored, world.service.secret)


def test_queues_jobs_of_dead_pool_immediately_and_starts_another_pool(world):
    job_id = world.submit()
    dead = world.pool()
    world.scheduler.tick()
    world.acquire(job_id, dead)
    socket = world.socket(dead)
    socket.parent.mkdir()
    socket.touch()
    world.workers.news.append(PoolEnded(pool_id=dead))
    world.scheduler.tick()
    assert not socket.exists()
    job = world.service.job(job_id)
    # What it waits for now, and why it is here again.
    loading = "loading the model 'nano': its worker died; resumes from the last checkpoint"
    assert (job.state, job.reason) == (JobState.QUEUED, loading)
    another = world.pool()
    assert another != dead
    world.scheduler.tick()
    assert world.workers.started[-1] == (another, job_id)


def test_fails_job_whose_workers_die_instead_of_killing_more(world):
    job_id = world.submit()
    for _ in range(5):
        assert not world.service.job(job_id).state.final
        dead = world.pool()
        world.scheduler.tick()
        world.acquire(job_id, dead)
        world.workers.news.append(PoolEnded(pool_id=dead))
        world.scheduler.tick()
    job = world.service.job(job_id)
    assert job.state is JobState.FAILED
    assert "5 workers in a row died or hung" in job.reason


def test_counts_checkpoint_between_two_deaths_as_progress(world):
    job_id = world.submit()
    for calls in range(1, 8):
        dead = world.pool()
        world.scheduler.tick()
        lease = world.acquire(job_id, dead)
        made = CheckpointEvent(step=calls, policy_version=calls, path="there", sha256="0" * 64)
        world.service.append_event(lease, made)
        world.workers.news.append(PoolEnded(pool_id=dead))
        world.scheduler.tick()
    assert not world.service.job(job_id).state.final


def test_fails_job_in_which_its_workers_hang_too(world):
    job_id = world.submit()
    for died in (False, True, False, False, False):
        assert not world.service.job(job_id).state.final
        pool_id = world.pool()
        world.scheduler.tick()
        world.acquire(job_id, pool_id)
        if died:
            world.workers.news.append(PoolEnded(pool_id=pool_id))
        world.pass_time(world.config.lease_seconds + 1)
    job = world.service.job(job_id)
    assert job.state is JobState.FAILED
    assert "5 workers in a row died or hung" in job.reason


def test_blames_no_job_for_leases_that_expire_under_live_workers(world):
    job_id = world.submit()
    pool_id = world.pool()
    world.scheduler.tick()
    for _ in range(8):
        assert world.acquire(job_id, pool_id)
        for _ in range(4):
            world.service.touch_pool(pool_id, world.clock.now)
            world.pass_time(10)
        job = world.service.job(job_id)
        assert (job.state, job.reason) == (
            JobState.QUEUED,
            "its lease ran out; resumes from the last checkpoint",
        )
    world.workers.news.append(PoolEnded(pool_id=pool_id))
    assert world.acquire(job_id, pool_id)
    world.scheduler.tick()
    assert world.service.job(job_id).state is JobState.QUEUED


def test_ends_hanging_pool_after_its_silence_lasted_a_lease(world):
    hung = world.pool()
    world.scheduler.tick()
    world.pass_time(world.config.lease_seconds - 1)
    assert hung in world.workers.pools
    world.pass_time(2)
    assert hung not in world.workers.pools
    assert len(world.workers.pools) == 1


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_keeps_pools_and_leases_when_the_clock_jumps(world, jump):
    job_id = world.submit()
    pool_id = world.pool()
    world.scheduler.tick()
    lease = world.acquire(job_id, pool_id)
    world.clock.now += jump
    world.scheduler.tick()
    world.pass_time(10)
    assert pool_id in world.workers.pools
    # By now the pool has said that it lives, as it does every few seconds.
    world.service.touch_pool(pool_id, world.clock.now)
    world.service.renew(lease, world.config.lease_seconds, world.clock.now)
    world.pass_time(world.config.lease_seconds - 1)
    assert pool_id in world.workers.pools
    assert world.service.job(job_id).state is JobState.STARTING
    # Who really is silent is found out, only later.
    world.pass_time(world.config.lease_seconds)
    assert pool_id not in world.workers.pools
    assert world.service.job(job_id).state is JobState.QUEUED


def test_finds_silence_though_every_look_takes_long(world, monkeypatch):
    job_id = world.submit()
    hung = world.pool()
    world.scheduler.tick()
    world.acquire(job_id, hung)
    held_jobs = world.service.held_jobs

    def slow():
        world.let_pass(20)  # more than half a lease
        return held_jobs()

    monkeypatch.setattr(world.service, "held_jobs", slow)
    for _ in range(4):
        world.scheduler.tick()
    assert hung not in world.workers.pools
    assert world.service.job(job_id).state is JobState.QUEUED


def test_does_not_mistake_stalled_processes_for_silent_ones(world):
    pool_id = world.pool()
    world.scheduler.tick()
    world.let_pass(3600)
    world.scheduler.tick()
    assert pool_id in world.workers.pools
    world.pass_time(world.config.lease_seconds)
    assert pool_id not in world.workers.pools


def test_retries_lost_placement_after_clock_was_set_back(world):
    job_id = world.submit()
    pool_id = world.pool()
    world.scheduler.tick()
    assert world.workers.started == [(pool_id, job_id)]
    world.clock.now -= 3600.0
    world.scheduler.tick()
    world.pass_time(10)
    assert len(world.workers.started) > 1


def test_fails_jobs_of_unloadable_model_with_the_reason(world):
    job_id = world.submit(model="no/such")
    world.scheduler.tick()
    pool_id = next(pool for pool, model in world.workers.pools.items() if model == "no/such")
    error = UnknownModelError("unknown model 'no/such'", hint="available: nano", field="model")
    world.workers.news.append(PoolEnded(pool_id=pool_id, error=error))
    world.scheduler.tick()
    job = world.service.job(job_id)
    assert (job.state, job.error.type, job.error.field) == (JobState.FAILED, "UnknownModelError", "model")
    assert "available: nano" in job.reason


def test_keeps_why_a_preloaded_model_does_not_start(world):
    error = ConfigError("torch sees no GPU", hint="set placement.gpus=0", field="placement.gpus")

    def refuse():
        world.scheduler.tick()
        (pool_id,) = world.workers.pools
        world.workers.news.append(PoolEnded(pool_id=pool_id, error=error))
        world.scheduler.tick()

    refuse()
    assert world.service.refusals()["nano"].error.message == "torch sees no GPU"
    world.scheduler.tick()
    assert world.workers.pools == {}  # tried again after a pause,
    job_id = world.submit()
    refuse()  # which nobody who waits has to sit through
    assert world.service.job(job_id).state is JobState.FAILED
    assert "set placement.gpus=0" in world.service.job(job_id).reason
    world.clock.now += 60.0
    world.pool()
    world.scheduler.tick()
    assert world.service.refusals() == {}


def test_retries_dying_pool_before_failing_its_jobs(world):
    job_id = world.submit()
    for attempt in range(3):
        world.scheduler.tick()
        (pool_id,) = world.workers.pools
        world.workers.news.append(PoolEnded(pool_id=pool_id))
        world.scheduler.tick()
        assert world.workers.pools == {}  # not at once
        assert world.service.job(job_id).state.final == (attempt == 2)
        world.clock.now += 60.0
    assert "died 3 times while it started" in world.service.job(job_id).reason
    world.scheduler.tick()
    assert len(world.workers.pools) == 1


def test_replaces_dead_environment_worker_and_tells_its_pool(world):
    pool_id = world.pool()
    world.scheduler.tick()
    (dead,) = world.workers.env_workers
    world.workers.news.append(EnvWorkerEnded(pool_id=pool_id, worker_id=dead))
    world.scheduler.tick()
    assert world.workers.told == [(pool_id, dead)]
    assert list(world.workers.env_workers.values()) == [pool_id, pool_id]


def test_gives_each_tenant_environment_workers_of_its_own(world):
    pool_id = world.pool()
    world.scheduler.tick()
    (first,) = world.workers.env_workers

    def seen(owners, *wanted):
        wanted = frozenset(wanted)
        world.workers.news.append(EnvWorkersSeen(pool_id=pool_id, owners=owners, wanted=wanted))
        world.service.touch_pool(pool_id, world.clock.now)
        world.pass_time(1.0)

    seen({}, "ada")  # the one that is there will be hers
    assert list(world.workers.env_workers) == [first]
    seen({first: "ada"}, "ada", "eve")
    (second,) = set(world.workers.env_workers) - {first}
    owners = {first: "ada", second: "eve"}
    for _ in range(3):
        seen(owners, "eve")
    assert set(world.workers.env_workers) == {first, second}  # she may come back
    for _ in range(60):
        seen(owners, "eve")
    assert list(world.workers.env_workers) == [second]


@pytest.mark.parametrize("write", ["remove_pool", "requeue_jobs_of", "forget_refusal"])
def test_records_events_during_a_database_lock_once_it_is_free(make_world, monkeypatch, write):
    world = make_world(preload=[])
    jobs = {model: world.submit(model=model) for model in ("dead", "new")}
    dead = world.pool("dead")
    world.scheduler.tick()
    world.acquire(jobs["dead"], dead)
    (new,) = (pool for pool, model in world.workers.pools.items() if model == "new")
    world.register(new)
    lost = next(w for w, pool_id in world.workers.env_workers.items() if pool_id == new)
    world.workers.news += [
        PoolEnded(pool_id=dead),
        PoolReady(pool_id=new),
        EnvWorkerEnded(pool_id=new, worker_id=lost),
    ]

    def locked(*_):
        raise ServiceUnavailableError("another process locked the database for 15 s")

    with monkeypatch.context() as patch:
        patch.setattr(world.service, write, locked)
        with pytest.raises(ServiceUnavailableError):
            world.scheduler.tick()
    world.scheduler.tick()
    assert world.service.job(jobs["dead"]).reason.endswith(
        "its worker died; resumes from the last checkpoint"
    )
    assert world.workers.started[-1] == (new, jobs["new"])
    assert world.workers.told == [(new, lost)]
    assert list(world.workers.env_workers.values()).count(new) == 2
    assert list(world.workers.pools.values()) == ["new", "dead"]


def test_counts_pool_death_during_start_once_despite_database_refusals(world, monkeypatch):
    job_id = world.submit()
    error = UnknownModelError("unknown model 'nano'", field="model")

    def locked(*_):
        raise ServiceUnavailableError("another process locked the database for 15 s")

    world.scheduler.tick()
    (pool_id,) = world.workers.pools
    world.workers.news.append(PoolEnded(pool_id=pool_id, error=error))
    with monkeypatch.context() as patch:
        patch.setattr(world.service, "note_refusal", locked)
        for _ in range(10):
            with pytest.raises(ServiceUnavailableError):
                world.scheduler.tick()
    world.scheduler.tick()
    assert world.service.job(job_id).state is JobState.FAILED
    world.clock.now += 2.0  # the pause after the first
    world.scheduler.tick()
    assert len(world.workers.pools) == 1


def test_rotates_tenants_and_never_exceeds_the_places_of_a_pool(make_world):
    world = make_world(jobs_per_pool=3)
    adas = [world.submit("ada") for _ in range(4)]
    bobs = [world.submit("bob") for _ in range(2)]
    world.pool()
    world.scheduler.tick()
    assert [job_id for _, job_id in world.workers.started] == [adas[0], bobs[0], adas[1]]


def test_counts_running_jobs_for_their_tenants_share(make_world):
    world = make_world(jobs_per_pool=2)
    running = world.submit("ada")
    pool_id = world.pool()
    world.acquire(running, pool_id)
    world.submit("ada")
    bobs = world.submit("bob")
    world.scheduler.tick()
    assert world.workers.started == [(pool_id, bobs)]


def test_denies_one_tenant_all_places_of_a_model_with_reason(world):
    adas = [world.submit("ada") for _ in range(5)]
    pool_id = world.pool()
    world.scheduler.tick()
    for _, job_id in world.workers.started:
        world.acquire(job_id, pool_id)
    # Alone, a tenant has all places.
    assert [job_id for _, job_id in world.workers.started] == adas[:4]
    world.scheduler.tick()
    bobs = world.submit("bob")
    world.service.requeue_jobs_of(pool_id, "the service was restarted")
    world.workers.started.clear()
    world.scheduler.tick()
    assert {job_id for _, job_id in world.workers.started} == {bobs, *adas[:3]}


def test_frees_parked_jobs_place_and_requeues_it_for_its_client(make_world):
    world = make_world(jobs_per_pool=1)
    parked, waiting = world.submit("ada"), world.submit("bob")
    pool_id = world.pool()
    world.scheduler.tick()
    world.service.park(world.acquire(parked, pool_id), "waits for its client")
    world.pass_time(2 * world.config.lease_seconds)
    view = world.service.job(parked)
    assert (view.state, view.reason) == (JobState.WAITING_FOR_CLIENT, "waits for its client")
    assert (pool_id, waiting) in world.workers.started
    world.service.client_came(parked)
    world.service.client_came(waiting)  # which is not parked
    assert [job.job_id for job in world.service.queued_jobs()] == [parked, waiting]
    assert world.store.tenant("ada").request_cancel(parked).state is JobState.CANCELLED


def test_cancels_a_parked_job_immediately(world):
    job_id = world.submit()
    pool_id = world.pool()
    world.service.park(world.acquire(job_id, pool_id), "waits for its client")
    assert world.store.tenant("ada").request_cancel(job_id).state is JobState.CANCELLED


def test_takes_over_what_runs_and_starts_nothing_twice(world):
    pool_id = world.pool()
    world.scheduler.tick()
    (worker_id,) = world.workers.env_workers
    world.workers.found = [
        Running(kind="pool", pool_id=pool_id, worker_id=pool_id, model="nano"),
        Running(kind="env_worker", pool_id=pool_id, worker_id=worker_id, model=""),
    ]
    world.new_scheduler()
    # Before its first tick, a pool may already have reported.
    world.workers.news.append(EnvWorkersSeen(pool_id=pool_id, owners={}, wanted=frozenset()))
    job_id = world.submit()
    world.scheduler.tick()
    assert list(world.workers.pools) == [pool_id]
    assert list(world.workers.env_workers) == [worker_id]
    assert world.workers.started == [(pool_id, job_id)]


def test_places_a_job_again_whose_pool_died_before_taking_it(world):
    job_id = world.submit()
    dead = world.pool()
    world.scheduler.tick()
    assert world.workers.started == [(dead, job_id)]
    world.workers.news.append(PoolEnded(pool_id=dead))
    world.scheduler.tick()
    another = world.pool()
    world.scheduler.tick()
    assert world.workers.started == [(dead, job_id), (another, job_id)]


def test_queues_jobs_of_vanished_pools_under_a_new_scheduler(world):
    job_id = world.submit()
    world.acquire(job_id, world.pool())
    world.workers.found = []
    world.new_scheduler()
    assert world.service.job(job_id).state is JobState.QUEUED
    assert world.service.pools(world.clock.now) == []


def test_shows_that_the_scheduler_lives(world):
    world.scheduler.tick()
    assert world.service.parts(world.clock.now)["scheduler"] == 0.0


def wanting(world, *models):
    """Let the models' pools come up one by one, each because somebody samples it."""
    pools = []
    for model in models:
        world.service.want_pool(model, world.clock.now)
        pools.append(world.pool(model))
        world.let_pass(1.0)
        world.scheduler.tick()
    return pools


def loaded(world):
    return list(world.workers.pools.values())


@pytest.fixture
def small(make_world):
    """A service with room for three models."""
    return make_world(preload=[], pools_memory=0.3, lease_seconds=1000.0)


def test_holds_model_without_room_and_says_what_its_job_awaits(small):
    wanting(small, "a", "b", "c")
    job_id = small.submit(model="d")
    small.scheduler.tick()
    assert loaded(small) == ["a", "b", "c"]
    assert "'d' waits for memory: the loaded models have 3.0 of 3.0 GB" in small.service.job(job_id).reason
    assert "pools_memory" in small.service.job(job_id).reason
    assert "waits for memory" in small.service.refusals()["d"].error.message


def test_evicts_longest_idle_model_for_one_that_waits(small):
    wanting(small, "a", "b", "c")
    job_id = small.submit(model="d")
    small.scheduler.tick()
    small.service.want_pool("a", small.clock.now)
    small.pass_time(62)  # by then b is not wanted any more
    assert loaded(small) == ["a", "c", "d"]
    assert small.service.refusals() == {}
    assert small.service.job(job_id).reason == "loading the model 'd'"
    small.pool("d")
    small.scheduler.tick()
    assert job_id in dict(small.workers.started).values()


def test_keeps_model_with_a_job_from_eviction(small):
    (busy, *_) = wanting(small, "a", "b", "c")
    lease = small.acquire(small.submit(model="a"), busy)
    small.submit(model="d")
    small.pass_time(62)
    assert loaded(small) == ["a", "c", "d"]
    small.submit(model="e")
    small.service.want_pool("c", small.clock.now)
    small.service.want_pool("d", small.clock.now)
    small.service.renew(lease, 1000.0, small.clock.now)
    small.pass_time(5)
    assert loaded(small) == ["a", "c", "d"]


def on_several_models(world, *models):
    world.store.keys.ensure_tenant("ada")
    agents = {f"agent_{number}": Train(model=model) for number, model in enumerate(models)}
    spec = RLSpec(environment=EnvironmentRef(id="a/game"), model=models[0], agents=agents, steps=1)
    return world.store.tenant("ada").create_job(spec, {}).job_id


def test_starts_job_on_several_base_models_when_all_have_room(small):
    home, _ = wanting(small, "a", "b")
    fits, waits = on_several_models(small, "a", "x"), on_several_models(small, "a", "x", "y")
    small.scheduler.tick()
    assert (home, fits) in small.workers.started
    assert (home, waits) not in small.workers.started
    assert "'x, y' waits for memory" in small.service.job(waits).reason
    small.pass_time(62)  # by then b is not wanted any more
    assert loaded(small) == ["a"]
    assert (home, waits) in small.workers.started


def test_lets_small_model_that_fits_pass_a_waiting_large_one(small):
    wanting(small, "a", "b")
    large = make_weights(small, "large", gigabytes=1)  # It takes two.
    small.submit(model=large)
    small.submit(model="small")
    small.scheduler.tick()
    assert loaded(small) == ["a", "b", "small"]
    small.submit(model="next")
    small.pass_time(62)  # by then a and b are not wanted any more
    assert loaded(small) == ["small", large]


def test_lets_no_model_pass_one_that_waited_a_minute(make_world):
    world = make_world(preload=[], pools_memory=0.3, lease_seconds=1000.0, pool_idle_seconds=60.0)
    jobs = {model: world.submit(model=model) for model in "ab"}
    for model, job_id in jobs.items():
        world.acquire(job_id, world.pool(model))
    large = make_weights(world, "large", gigabytes=1)  # It takes two.
    world.submit(model=large)
    world.pass_time(62)
    world.submit(model="small")
    world.scheduler.tick()
    assert loaded(world) == ["a", "b"]
    world.store.tenant("ada").request_cancel(jobs["a"])
    world.service.requeue_jobs_of(next(iter(world.workers.pools)), "")  # One that is to be cancelled ends.
    world.pass_time(5)
    assert loaded(world) == ["b", large]


def test_places_jobs_on_several_models_beside_one_that_waited(make_world):
    world = make_world(preload=[], pools_memory=0.3, lease_seconds=1000.0, pool_idle_seconds=60.0)
    for model in "ab":
        world.acquire(world.submit(model=model), world.pool(model))
    large = make_weights(world, "large", gigabytes=2)
    world.submit(model=large)
    world.pass_time(62)
    several = [on_several_models(world, *models) for models in ("bx", "ax")]
    world.scheduler.tick()
    assert {*several} <= {job_id for _, job_id in world.workers.started}
    # All jobs end, and the one that waited gets its room.
    for job_id in several:
        world.store.tenant("ada").request_cancel(job_id)
    for job in world.service.held_jobs():
        world.store.tenant("ada").request_cancel(job.job_id)
        world.service.requeue_jobs_of(job.worker_id, "")
    world.pass_time(62)
    assert loaded(world) == [large]


def test_keeps_idle_models_for_the_one_that_waits_longest(small):
    wanting(small, "a", "b", "c")
    small.pass_time(62)
    for model in ("a", "b"):
        small.service.want_pool(model, small.clock.now)
    large = make_weights(small, "large", gigabytes=1)
    small.submit(model=large)
    small.submit(model="small")
    small.scheduler.tick()
    assert loaded(small) == ["a", "b", "c"]
    small.pass_time(62)
    assert loaded(small) == [large, "small"]


def test_counts_a_pools_ranks_once(make_world):
    models = {"m": {"path": "some/m", "placement": {"learner": {"ranks": 2}}}}
    world = make_world(preload=[], pools_memory=0.4, lease_seconds=1000.0, models=models)
    pool_id, _ = wanting(world, "m", "a")
    waits = world.submit(model="b")
    world.scheduler.tick()
    assert loaded(world) == ["m", "a"]  # Ranks start when it learns, and room is kept for them.
    world.store.tenant("ada").request_cancel(waits)
    world.workers.weights["m"] = 3  # They have started.
    world.workers.found = [
        Running(kind="pool", pool_id=one, worker_id=one, model=model)
        for one, model in world.workers.pools.items()
    ]
    world.new_scheduler()
    world.scheduler.tick()
    world.workers.end_pool(pool_id)
    world.workers.news.append(PoolEnded(pool_id=pool_id))
    world.scheduler.tick()
    assert sorted(loaded(world)) == ["a", "m"]


def make_weights(world, name, *, gigabytes):
    folder = world.config.data_dir / name
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(gigabytes * 10**9)  # a hole, which takes no disk
    return str(folder)


def test_evicts_idle_models_when_all_grow_too_large_together(small):
    busy, _ = wanting(small, "a", "b")
    small.acquire(small.submit(model="a"), busy)
    small.pass_time(62)
    assert loaded(small) == ["a", "b"]
    small.workers.weights["a"] = 3
    small.pass_time(6)
    assert loaded(small) == ["a"]


def test_records_what_models_take_for_whoever_asks(small):
    small.workers.weights["a"] = 2
    wanting(small, "a")
    small.pass_time(6)
    (pool,) = small.service.pools(small.clock.now, max_age=1000.0)
    assert pool.memory_bytes == 2 * 10**9


def test_keeps_environment_workers_of_unpreloaded_model_around_jobs_only(small):
    (pool,) = wanting(small, "a")
    assert list(small.workers.env_workers.values()) == [pool]
    small.pass_time(small.config.pool_rest_seconds + 2)
    assert small.workers.env_workers == {}
    small.submit(model="a")
    small.scheduler.tick()
    assert list(small.workers.env_workers.values()) == [pool]


@pytest.mark.parametrize("end", ["died", "fell silent"])
def test_reports_replaced_pool_as_lost_part_until_next_is_ready(make_world, end):
    world = make_world(preload=[])
    job_id = world.submit(model="small")
    pool_id = world.pool("small")
    world.scheduler.tick()
    world.acquire(job_id, pool_id)
    if end == "died":
        world.workers.news.append(PoolEnded(pool_id=pool_id))
        world.scheduler.tick()
    else:
        world.pass_time(world.config.lease_seconds + 2.0)
    assert lost_pools(world.service.parts(world.clock.now)) == {"small"}
    world.new_scheduler()  # Another one knows it too.
    world.pool("small")
    world.scheduler.tick()
    assert lost_pools(world.service.parts(world.clock.now)) == set()


def test_does_not_miss_pool_that_died_when_unneeded(make_world):
    world = make_world(preload=[])
    job_id = world.submit(model="small")
    pool_id = world.pool("small")
    world.scheduler.tick()
    world.store.tenant("ada").request_cancel(job_id)
    world.workers.news.append(PoolEnded(pool_id=pool_id))
    world.scheduler.tick()
    assert lost_pools(world.service.parts(world.clock.now)) == set()
