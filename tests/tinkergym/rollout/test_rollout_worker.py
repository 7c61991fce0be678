import threading
from collections import deque

import pytest

import tinkergym as tg
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import (
    AuthenticationError,
    ConflictError,
    PayloadTooLargeError,
    ServiceUnavailableError,
    ServiceUnreachableError,
)
from tinkergym.rollout.rollout_worker import RolloutWorker
from tinkergym.schema.episodes import EpisodeRequest, LeaseReply, SeatPlan, SubmitReply, SubmitRequest
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits, Sampling
from tinkergym.testing import ScriptedSampler, byte_bundle
from tinkergym.trajectory.trajectory import ONLY_AGENT

BUNDLE = byte_bundle()
RENDERER = Renderer.from_bundle(BUNDLE)


class Echo(tg.SingleTurnEnv):
    def ask(self, options):
        return f"seed {self.np_random_seed}"

    def score(self, answer):
        return 1.0


def episode(index, lease_seconds=30.0, model="bytes"):
    return EpisodeRequest(
        job_id="j",
        episode_id=f"j:1:{index}",
        step=1,
        index=index,
        group=0,
        environment=EnvironmentRef(id="echo"),
        seed=index,
        seats={
            ONLY_AGENT: SeatPlan(
                policy="j", policy_version=0, model=model, sampling_seed=index, sampling=Sampling()
            )
        },
        limits=Limits(),
        lease_id=f"lease-{index}",
        lease_seconds=lease_seconds,
    )


class Service:
    """A service in memory: hands out episodes, takes results, and fails as told to."""

    def __init__(self, episodes, *, most=100, lease_errors=(), submit_errors=(), sampler=None):
        self.waiting = deque(episodes)
        self.unfinished = {e.lease_id for e in self.waiting}
        self.most = most
        self.lease_errors, self.submit_errors = deque(lease_errors), deque(submit_errors)
        self.lost = set()
        self.leases, self.submissions, self.accepted = [], [], []
        self.final = JobState.COMPLETED
        self.changed = threading.Condition()
        self.the_sampler = sampler or ScriptedSampler(RENDERER, lambda prompt: "yes")
        self.renderers = []

    def lease(self, request):
        with self.changed:
            self.leases.append(request)
            self.changed.notify_all()
            if request.leaving:
                return LeaseReply(episodes=[], job_state=JobState.RUNNING)
            if self.lease_errors:
                raise self.lease_errors.popleft()
            count = min(request.max_episodes, self.most, len(self.waiting))
            episodes = [self.waiting.popleft() for _ in range(count)]
            lost = [lease for lease in request.renew if lease in self.lost]
            if not episodes and not lost and self.unfinished and request.max_episodes:
                self.changed.wait(min(request.wait_seconds, 0.05))
            state = JobState.RUNNING if self.unfinished else self.final
            return LeaseReply(episodes=episodes, lost=lost, job_state=state)

    def submit(self, request):
        # What a real transport sends must be valid.
        request = SubmitRequest.model_validate_json(request.model_dump_json())
        with self.changed:
            self.submissions.append(len(request.results))
            if self.submit_errors:
                error = self.submit_errors.popleft()
                if error is not None:
                    raise error
            verdicts = []
            for result in request.results:
                known = result.lease_id in self.unfinished
                verdicts.append("accepted" if known else "stale")
                self.unfinished.discard(result.lease_id)
                if known:
                    self.accepted.append(result)
            self.changed.notify_all()
            return SubmitReply(verdicts=verdicts)

    def sampler(self):
        return self.the_sampler

    def renderer(self, model):
        self.renderers.append(model)
        return BUNDLE

    def wait_for(self, condition):
        with self.changed:
            assert self.changed.wait_for(condition, timeout=60)


def work(service, **settings):
    RolloutWorker(service, make_env=lambda reference: Echo(), **settings).run()


def test_plays_everything_and_returns_when_the_job_has_ended():
    service = Service([episode(i) for i in range(30)])
    work(service, worker_id="me")
    assert sorted(r.trajectory.seed for r in service.accepted) == list(range(30))
    assert all(r.trajectory.episode_return == 1.0 for r in service.accepted)
    assert {request.worker_id for request in service.leases} == {"me"}
    assert service.renderers == ["bytes"]


def test_drops_renderers_that_were_not_needed_lately():
    templates = ["job-first", *(f"job-{number}" for number in range(30)), "job-first"]
    service = Service([episode(i, model=model) for i, model in enumerate(templates)], most=1)
    work(service)
    assert len(service.accepted) == len(templates)
    assert service.renderers.count("job-first") == 2


def test_never_holds_more_episodes_than_allowed():
    service = Service([episode(i) for i in range(20)])
    playing, most = set(), []

    class Counting(Echo):
        def ask(self, options):
            playing.add(self)
            most.append(len(playing))
            return super().ask(options)

        def score(self, answer):
            playing.discard(self)
            return 1.0

    RolloutWorker(service, make_env=lambda reference: Counting(), max_episodes=3).run()
    assert len(service.accepted) == 20
    assert max(most) <= 3
    assert max(request.max_episodes for request in service.leases) == 3


def test_costs_nothing_but_time_in_an_outage():
    away = ServiceUnreachableError("nobody answers")
    service = Service(
        [episode(i) for i in range(4)],
        lease_errors=[away, away],
        submit_errors=[ServiceUnavailableError("restarting")],
    )
    work(service)
    assert len(service.accepted) == 4


def test_raises_what_the_service_said_to_refused_worker():
    service = Service([episode(0)], lease_errors=[AuthenticationError("the key was revoked")])
    with pytest.raises(AuthenticationError):
        work(service)


def test_raises_on_refused_submission_too():
    service = Service([episode(0)], submit_errors=[ConflictError("no such step", code="no_step")])
    with pytest.raises(ConflictError, check=lambda error: error.code == "no_step"):
        work(service)


def test_hands_in_apart_results_too_large_together():
    class Small(Service):
        def submit(self, request):
            if len(request.results) > 2:
                self.submissions.append(len(request.results))
                raise PayloadTooLargeError("too large")
            return super().submit(request)

    service = Small([episode(i) for i in range(20)])
    work(service)
    assert sorted(r.trajectory.seed for r in service.accepted) == list(range(20))


class Gate:
    """A sampler that answers some sessions only when told to."""

    def __init__(self, *held):
        self.held = set(held)
        self.kept = []
        self.asked = threading.Event()
        self.inner = ScriptedSampler(RENDERER, lambda prompt: "yes")

    def submit(self, requests, deliver):
        kept = [request for request in requests if request.session_id in self.held]
        self.kept += [(request, deliver) for request in kept]
        if kept:
            self.asked.set()
        self.inner.submit([request for request in requests if request not in kept], deliver)

    def release(self):
        for request, deliver in self.kept:
            self.inner.submit([request], deliver)

    def close(self):
        pass


def test_drops_lost_episode_and_continues_the_others():
    gate = Gate("lease-0")
    service = Service([episode(i, lease_seconds=0.3) for i in range(3)], sampler=gate)
    with running(service) as worker:
        service.wait_for(lambda: len(service.accepted) == 2)
        assert gate.asked.wait(60)
        with service.changed:
            service.lost.add("lease-0")
            seen = len(service.leases)
        # The renewal that tells of the loss, and the one after it, which no longer names the lease.
        service.wait_for(lambda: any("lease-0" not in r.renew for r in service.leases[seen:]))
        gate.release()
        service.waiting.append(episode(7))
        service.unfinished = {"lease-7"}
        service.wait_for(lambda: len(service.accepted) == 3)
        worker.stop()
    assert sorted(r.trajectory.seed for r in service.accepted) == [1, 2, 7]


def test_renews_leases_while_episodes_are_played_and_not_after():
    gate = Gate("lease-0")
    service = Service([episode(0, lease_seconds=0.3), episode(1, lease_seconds=0.3)], sampler=gate)
    with running(service, max_episodes=2) as worker:
        service.wait_for(lambda: [r.trajectory.seed for r in service.accepted] == [1])
        service.wait_for(lambda: service.leases[-1].renew == ["lease-0"])
        gate.release()
        service.wait_for(lambda: not service.unfinished)
        worker.stop()


def test_only_renews_as_a_full_worker():
    gate = Gate("lease-0")
    service = Service([episode(0, lease_seconds=3.0), episode(1, lease_seconds=3.0)], sampler=gate)
    with running(service, max_episodes=1) as worker:
        service.wait_for(lambda: (0, ["lease-0"]) in [(r.max_episodes, r.renew) for r in service.leases])
        assert len(service.waiting) == 1
        gate.release()
        service.wait_for(lambda: len(service.accepted) == 2)
        worker.stop()


def test_hands_in_what_is_finished_when_stopped():
    away = [ServiceUnavailableError("restarting")] * 1000  # until it is back
    service = Service([episode(0), episode(1)], sampler=Gate("lease-0"), submit_errors=away)
    with running(service) as worker:
        service.wait_for(lambda: service.submissions)
        with service.changed:
            service.submit_errors.clear()
        worker.stop()
    assert [r.trajectory.seed for r in service.accepted] == [1]


def test_returns_unfinished_episodes_when_stopped_and_hands_in_others():
    away = [ServiceUnavailableError("restarting")] * 1000  # until it is back
    service = Service([episode(0), episode(1)], sampler=Gate("lease-0"), submit_errors=away)
    with running(service) as worker:
        service.wait_for(lambda: service.submissions)
        worker.stop()
        service.wait_for(lambda: service.leases[-1].leaving)
        with service.changed:
            service.submit_errors.clear()
    (last,) = [request for request in service.leases if request.leaving]
    assert (last.max_episodes, last.renew) == (0, ["lease-1"])


def test_leaves_after_stop_once_what_was_finished_is_in():
    reached, go = threading.Event(), threading.Event()

    class Slow(Service):
        def submit(self, request):
            reached.set()
            assert go.wait(60)
            return super().submit(request)

    service = Slow([episode(0), episode(1)], sampler=Gate("lease-0"))
    worker = RolloutWorker(service, make_env=lambda reference: Echo())
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert reached.wait(60)
    worker.stop()
    service.wait_for(lambda: service.leases[-1].leaving)
    assert not worker.left.wait(0.2), "a script that ended now would take the finished episode along"
    go.set()
    assert worker.left.wait(60)
    assert [result.trajectory.seed for result in service.accepted] == [1]
    thread.join(60)


def test_says_once_that_it_waits_for_another_ones_leases(said_by):
    class Held(Service):
        def lease(self, request):
            return super().lease(request).model_copy(update={"held_seconds": 21.0})

    service = Held([])
    service.unfinished = {"of another worker"}
    with running(service) as worker:
        service.wait_for(lambda: len(service.leases) > 3)
        worker.stop()
    (waits,) = said_by("tinkergym.rollout.rollout_worker")
    assert "21 s" in waits


def test_says_once_each_thing_that_its_job_waits_for(said_by):
    class Queued(Service):
        def lease(self, request):
            waits_for = "loading the model 'nano'" if len(self.leases) < 3 else "2 of 2 slots are taken"
            return super().lease(request).model_copy(update={"waits_for": waits_for})

    service = Queued([])
    service.unfinished = {"of the job"}
    with running(service) as worker:
        service.wait_for(lambda: len(service.leases) > 5)
        worker.stop()
    loading, taken = said_by("tinkergym.rollout.rollout_worker")
    assert "loading the model 'nano'" in loading
    assert "2 of 2 slots are taken" in taken


def test_ends_in_mid_episode_when_its_job_is_cancelled():
    gate = Gate("lease-0")
    service = Service([episode(0, lease_seconds=0.3)], sampler=gate)
    service.final = JobState.CANCELLED
    with running(service) as _:
        assert gate.asked.wait(60)
        with service.changed:
            service.unfinished.clear()
    assert service.accepted == []


def test_raises_what_breaks_inside_a_worker():
    class Broken(Service):
        def submit(self, request):
            raise ZeroDivisionError("in the transport")

    with pytest.raises(ZeroDivisionError):
        work(Broken([episode(0), episode(1)]))


class running:  # noqa: N801 - reads as a word
    """Run a worker in a thread for the length of a block; afterwards it has ended."""

    def __init__(self, service, **settings):
        self.worker = RolloutWorker(service, make_env=lambda reference: Echo(), **settings)
        self.thread = threading.Thread(target=self.worker.run)

    def __enter__(self):
        self.thread.start()
        return self.worker

    def __exit__(self, *exception):
        if exception[0] is not None:
            self.worker.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()
