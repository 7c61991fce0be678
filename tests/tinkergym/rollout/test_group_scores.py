"""Episodes that are paid together: what the environment sees of a group, and what becomes of failures."""

from __future__ import annotations

import threading
import time

import pytest

import tinkergym as tg
from tests.tinkergym.rollout.test_rollout_worker import RENDERER, Service, episode
from tinkergym.agent.plan import EpisodePlan
from tinkergym.errors import InvalidRewardError, PayloadTooLargeError
from tinkergym.rollout.executors import InlineExecutor, ProcessExecutor, ThreadExecutor
from tinkergym.rollout.play import RolloutWorker, play
from tinkergym.rubrics import Rubric, score_members
from tinkergym.schema.job_spec import EnvironmentRef, Limits
from tinkergym.testing import ScriptedSampler
from tinkergym.trajectory.trajectory import StopReason

SIZE = 4
rubric = Rubric()


@rubric.term
def longest(answer, group_answers):
    return len(answer) == max(map(len, group_answers))


@rubric.term(weight=0.5)
def is_gold(answer, gold):
    return answer == gold


class Longest(tg.SingleTurnEnv):
    """Pays the longest answer of a group; knows its task when it is asked."""

    def ask(self, options):
        self.gold = "x" * int(self.np_random.integers(1, 9))
        return "Say much."

    def score(self, answer):
        if answer == "break":
            raise RuntimeError("broken")
        return 0.25, {"asked": 1.0}

    def score_group(self, members):
        self.seen = members
        return score_members(rubric, members, gold=self.gold)


class Failing(Longest):
    def score_group(self, members):
        match members[0].answer:
            case "raise":
                raise RuntimeError("no judge today")
            case "few":
                return [1.0]
            case "odd":
                return ["much", float("nan"), None, (1.0, {"a": "b"})]
            case "late":
                time.sleep(60)
            case "some":
                return [1.0, InvalidRewardError("the judge is away"), (0.5, {"extra": 2.0}), True]
        raise AssertionError


def make(reference):
    return {"longest": Longest, "failing": Failing}[reference.id]()


def plans(environment="longest", seed=3, step_timeout_seconds=60.0):
    limits = Limits(step_timeout_seconds=step_timeout_seconds, episode_timeout_seconds=100.0)
    return [
        EpisodePlan(
            episode_id=f"j:1:{number}",
            lease_id=f"lease-{number}",
            seed=seed,
            policy="p",
            environment=EnvironmentRef(id=environment),
            sampling_seed=number,
            group_size=SIZE,
            limits=limits,
        )
        for number in range(SIZE)
    ]


def played(answers, some=None, executor=None):
    """Play a group whose member k gives answer k; return the results in order."""
    by_lease = {f"lease-{number}": text for number, text in enumerate(answers)}
    sampler = ByLease(by_lease)
    results = play(some or plans(), sampler=sampler, renderer=RENDERER, make_env=make, executor=executor)
    return sorted(results, key=lambda one: one.episode_id)


class ByLease(ScriptedSampler):
    """Answers by who asks."""

    def __init__(self, answers):
        super().__init__(RENDERER, lambda prompt: "")
        self._by_lease = answers

    def submit(self, requests, answer):
        for request in requests:
            text = self._by_lease[request.session_id.partition("/")[0]]
            ScriptedSampler(RENDERER, lambda prompt, text=text: text).submit([request], answer)


@pytest.mark.parametrize("executor", [InlineExecutor, ThreadExecutor, lambda: ProcessExecutor(2)])
def test_each_member_is_paid_by_what_all_have_said_and_the_task_they_shared(executor):
    gold = Longest()
    gold.reset(seed=3)
    answers = ["a", gold.gold, "a" * 20, "ab"]
    found = [one.trajectory for one in played(answers, executor=executor())]
    assert [one.episode_return for one in found] == [0.0, 0.5, 1.0, 0.0]
    assert found[2].turns[-1].metrics == {"asked": 1.0, "reward/longest": 1.0, "reward/is_gold": 0.0}
    assert all(one.stop_reason is StopReason.TERMINATED for one in found)


def test_an_episode_that_failed_is_not_among_those_that_are_compared():
    found = [one.trajectory for one in played(["aaaaaaaaaaaa", "break", "b", "cc"])]
    assert [one.stop_reason is StopReason.TERMINATED for one in found] == [True, False, True, True]
    assert [one.episode_return for one in found] == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("first", "reason", "told"),
    [
        ("raise", StopReason.ENVIRONMENT_ERROR, "no judge today"),
        ("few", StopReason.ENVIRONMENT_ERROR, "4 scores"),
        ("odd", StopReason.INVALID_REWARD, "score_group returned"),
        ("late", StopReason.ENVIRONMENT_TIMEOUT, "step_timeout_seconds"),
    ],
)
def test_where_there_are_no_scores_all_episodes_are_lost(first, reason, told):
    seconds = 0.05 if first == "late" else 60.0
    some = plans("failing", step_timeout_seconds=seconds)
    found = [one.trajectory for one in played([first, "b", "c", "d"], some)]
    assert [one.stop_reason for one in found] == [reason] * SIZE
    assert all(told in one.error and not one.completed for one in found)


@pytest.mark.parametrize("executor", [ThreadExecutor, lambda: ProcessExecutor(1)])
def test_one_member_without_a_score_is_lost_alone(executor):
    found = [one.trajectory for one in played(["some", "b", "c", "d"], plans("failing"), executor())]
    assert [one.completed for one in found] == [True, False, True, True]
    assert [one.episode_return for one in found] == [1.0, 0.0, 0.5, 1.0]
    assert found[1].stop_reason is StopReason.INVALID_REWARD
    assert "the judge is away" in found[1].error
    assert found[2].turns[-1].metrics["extra"] == 2.0


def grouped(index):
    request = episode(index)
    place = {"group": index // SIZE, "group_size": SIZE, "seed": index // SIZE}
    return request.model_copy(update={**place, "environment": EnvironmentRef(id="longest")})


class Narrow(Service):
    """Takes one group at a time, the first when all have been paid."""

    paid = 0

    def submit(self, request):
        with self.changed:
            assert self.changed.wait_for(lambda: self.paid == 4, timeout=60)
        if len(request.results) > SIZE:
            raise PayloadTooLargeError("too large")
        return super().submit(request)


def test_a_group_is_handed_in_as_a_whole_also_where_a_request_was_too_large():
    class Counted(Longest):
        def score_group(self, members):
            with service.changed:
                service.paid += 1
                service.changed.notify_all()
            return super().score_group(members)

    service = Narrow([grouped(i) for i in range(4 * SIZE)])
    RolloutWorker(service, make_env=lambda _: Counted()).run(threading.Event())
    assert len(service.accepted) == 4 * SIZE
    assert service.submissions == [SIZE] * 4


def test_where_one_lease_of_a_group_is_lost_the_others_are_given_up():
    begun = threading.Event()

    class Held(Longest):
        def score(self, answer):
            begun.set()
            service.wait_for(lambda: "lease-1" not in service.leases[-1].renew)
            return 0.0

    service = Service([grouped(i) for i in range(SIZE)])
    stop = threading.Event()
    worker = threading.Thread(
        target=RolloutWorker(service, make_env=lambda _: Held()).run, args=(stop,), daemon=True
    )
    worker.start()
    assert begun.wait(60)
    with service.changed:
        service.lost.add("lease-2")
        service.changed.notify_all()
    service.wait_for(lambda: service.leases and service.leases[-1].renew == [])
    stop.set()
    worker.join(60)
    assert service.accepted == []
