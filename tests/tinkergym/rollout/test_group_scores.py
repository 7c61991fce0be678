"""Episodes that are paid together: what the environment sees of a group, and what becomes of failures."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

import tinkergym as tg
from tests.tinkergym.rollout.test_rollout_worker import RENDERER, Service, episode
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.errors import InvalidRewardError, PayloadTooLargeError
from tinkergym.rollout.executors import InlineExecutor, ProcessExecutor, ThreadExecutor
from tinkergym.rollout.group_scores import WaitingGroup
from tinkergym.rollout.play_list import play
from tinkergym.rollout.rollout_worker import RolloutWorker
from tinkergym.rubrics import Rubric, score_members
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits
from tinkergym.testing import ScriptedSampler
from tinkergym.testing.faults import hangs_end
from tinkergym.testing.made_up_episodes import one_turn_episode
from tinkergym.trajectory.trajectory import StopReason

SIZE = 4
asked_late = threading.Event()
"""Set once the scores are asked for that do not come in time."""
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
                asked_late.set()
                hangs_end.wait(60)
            case "some":
                return [1.0, InvalidRewardError("the judge is away"), (0.5, {"extra": 2.0}), True]
        raise AssertionError


def make(reference):
    return {"longest": Longest, "failing": Failing}[reference.id]()


def plans(environment="longest", seed=3):
    limits = Limits(step_timeout_seconds=60.0, episode_timeout_seconds=100.0)
    return [
        EpisodePlan(
            episode_id=f"j:1:{number}",
            lease_id=f"lease-{number}",
            seed=seed,
            policy="p",
            environment=EnvironmentRef(id=environment),
            decoding=Decoding(seed=number),
            group_size=SIZE,
            limits=limits,
        )
        for number in range(SIZE)
    ]


def played(answers, some=None, executor=None, **settings):
    """Play a group whose member k gives answer k; return the results in order."""
    by_lease = {f"lease-{number}": text for number, text in enumerate(answers)}
    sampler = ByLease(by_lease)
    results = play(
        some or plans(), sampler=sampler, renderer=RENDERER, make_env=make, executor=executor, **settings
    )
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
def test_pays_members_by_all_answers_and_their_shared_task(executor):
    gold = Longest()
    gold.reset(seed=3)
    answers = ["a", gold.gold, "a" * 20, "ab"]
    found = [one.trajectory for one in played(answers, executor=executor())]
    assert [one.episode_return for one in found] == [0.0, 0.5, 1.0, 0.0]
    assert found[2].turns[-1].metrics == {"asked": 1.0, "reward/longest": 1.0, "reward/is_gold": 0.0}
    assert all(one.stop_reason is StopReason.TERMINATED for one in found)


def test_excludes_failed_episode_from_those_that_are_compared():
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
@pytest.mark.usefixtures("end_hangs")
def test_loses_all_episodes_where_there_are_no_scores(first, reason, told):
    asked_late.clear()
    answers = [first, "b", "c", "d"]
    # Only the time for the scores passes, however long the episodes take.
    results = played(answers, plans("failing"), clock=lambda: time.monotonic() + 1000 * asked_late.is_set())
    found = [one.trajectory for one in results]
    assert [one.stop_reason for one in found] == [reason] * SIZE
    assert all(told in one.error and not one.completed for one in found)


@pytest.mark.parametrize(
    "executor",
    [ThreadExecutor, pytest.param(lambda: ProcessExecutor(1), marks=pytest.mark.full("starts a process"))],
)
def test_loses_alone_one_member_without_a_score(executor):
    found = [one.trajectory for one in played(["some", "b", "c", "d"], plans("failing"), executor())]
    assert [one.completed for one in found] == [True, False, True, True]
    assert [one.episode_return for one in found] == [1.0, 0.0, 0.5, 1.0]
    assert found[1].stop_reason is StopReason.INVALID_REWARD
    assert "the judge is away" in found[1].error
    assert found[2].turns[-1].metrics["extra"] == 2.0


class Asked(tg.SingleTurnEnv):
    """Scores each member by the number in its last answer, times 10, and keeps what it was asked."""

    def ask(self, options):
        self.asked = {"seed": self.np_random_seed, **options}
        return "Count."

    def score_group(self, members):
        self.members = members
        return [10.0 * float(one.answer) for one in members]


def waiting(numbers, *, task_index=None, failed=(), early=0.0):
    """A group whose member with number n earned 1 before it answered n; those in `failed` failed."""
    plan = plans("longest", seed=5)[0]
    group = WaitingGroup(replace(plan, group_size=len(numbers), task_index=task_index))
    for number in numbers:
        once = one_turn_episode(
            0.25, StopReason.ENVIRONMENT_ERROR if number in failed else StopReason.TERMINATED, asked=1.0
        )
        turn = once.turns[0]
        turns = [
            turn.model_copy(update={"action": "wait", "reward": 1.0}),
            turn.model_copy(update={"action": str(number), "segment": 1}),
        ]
        update = {"turns": turns, "segments": once.segments * 2, "early_reward": early}
        episode_id = f"j:1:{number}"
        group.results[number] = EpisodeResult(
            episode_id=episode_id, lease_id="lease", trajectories=[once.model_copy(update=update)]
        )
    return group


def returns(results):
    return {one.episode_id: one.trajectory.episode_return for one in results}


def test_pays_each_of_twelve_members_its_own_score():
    # Ended in an order that is neither that of numbers nor that of names.
    group = waiting([11, 2, 0, 10, 7, 1, 9, 3, 8, 4, 6, 5])
    env = Asked()
    found = returns(group.scored_results(group.ask(env)))
    assert found == {f"j:1:{n}": pytest.approx(10.0 * n) for n in range(12)}
    assert [one.answer for one in env.members] == [str(n) for n in range(12)]


def test_pays_the_score_in_place_of_all_that_was_earned():
    group = waiting([1, 2], early=0.5)
    paid = group.scored_results(group.ask(Asked()))
    assert returns(paid) == {"j:1:1": pytest.approx(10.0), "j:1:2": pytest.approx(20.0)}
    # Earlier rewards stay where they were; the last one makes up the difference.
    assert [turn.reward for turn in paid[0].trajectory.turns] == pytest.approx([1.0, 8.5])


def test_shows_the_environment_what_each_member_did():
    env = Asked()
    waiting([3], early=0.5).ask(env)
    (member,) = env.members
    assert (member.observations, member.answers) == (["go", "go"], ["wait", "3"])
    assert (member.reward, member.metrics, member.terminated) == (1.75, {"asked": 2.0}, True)


@pytest.mark.parametrize("task_index", [None, 0, 6])
def test_asks_with_the_task_and_seed_of_the_group(task_index):
    env = Asked()
    waiting([0, 1], task_index=task_index).ask(env)
    assert env.asked == {"seed": 5} | ({} if task_index is None else {"task_index": task_index})


def test_gives_no_others_score_after_a_failed_member():
    group = waiting(range(12), failed={0, 4, 10})
    env = Asked()
    paid = group.scored_results(group.ask(env))
    assert [one.answer for one in env.members] == ["1", "2", "3", "5", "6", "7", "8", "9", "11"]
    found = returns(paid)
    assert [found[f"j:1:{n}"] for n in (1, 3, 5, 9, 11)] == pytest.approx([10.0, 30.0, 50.0, 90.0, 110.0])
    lost = {one.episode_id for one in paid if not one.trajectory.completed}
    assert lost == {"j:1:0", "j:1:4", "j:1:10"}


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


def test_hands_in_whole_group_also_after_too_large_request():
    class Counted(Longest):
        def score_group(self, members):
            with service.changed:
                service.paid += 1
                service.changed.notify_all()
            return super().score_group(members)

    service = Narrow([grouped(i) for i in range(4 * SIZE)])
    RolloutWorker(service, make_env=lambda _: Counted()).run()
    assert len(service.accepted) == 4 * SIZE
    assert service.submissions == [SIZE] * 4


def test_gives_up_whole_group_when_one_lease_is_lost():
    begun, released = threading.Event(), threading.Event()

    class Held(Longest):
        def score(self, answer):
            service.wait_for(lambda: any("lease-1" in request.renew for request in service.leases))
            begun.set()
            released.wait(120)
            return 0.0

    service = Service([grouped(i) for i in range(SIZE)])
    worker = RolloutWorker(service, make_env=lambda _: Held())
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    assert begun.wait(60)
    with service.changed:
        service.lost.add("lease-2")
        service.changed.notify_all()
    service.wait_for(lambda: service.leases and service.leases[-1].renew == [])
    # Not before: on a busy machine the group would be scored before the player hears of the loss.
    worker.stop()
    released.set()
    thread.join(60)
    assert service.accepted == []
