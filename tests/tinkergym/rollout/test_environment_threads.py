"""Each environment has a thread of its own, and none of them waits for another."""

import dataclasses
import threading

from tests.tinkergym.rollout.test_executors import (
    PATIENCE_SECONDS,
    RENDERER,
    YES,
    plans,
)
from tinkergym.rollout.executors import ThreadExecutor
from tinkergym.rollout.player import EpisodePlayer
from tinkergym.schema.jobs.parts import Limits
from tinkergym.testing.faults import Sound
from tinkergym.trajectory.trajectory import StopReason


class Seen(Sound):
    """Notes in which threads it is made, called and closed; hangs in a wrong episode until it is let go."""

    def __init__(self, log):
        self.log = log
        self.note("made")

    def note(self, what):
        self.log.append((what, threading.current_thread()))

    def reply(self, action):
        self.note("called")
        return super().reply(action)

    def go_wrong(self):
        self.log.hangs.set()
        self.log.let_go.wait()

    def close(self):
        self.note("closed")
        if sum(what == "closed" for what, _ in self.log) == self.log.environments:
            self.log.all_closed.set()


class Log(list):
    """What environments note."""

    def __init__(self, environments):
        self.environments = environments
        self.hangs, self.let_go, self.all_closed = (threading.Event() for _ in range(3))

    def threads(self):
        return {thread for _, thread in self}


def player_of(log):
    return EpisodePlayer(sampler=YES, make_env=lambda reference: Seen(log), executor=ThreadExecutor())


def played(player, requests):
    for plan in requests:
        player.start(plan, RENDERER)
    results = {}
    while player.active:
        results |= {result.episode_id: result.trajectory for result in player.poll(1.0)}
    return results


def hasty(plan):
    """The same, with little time for each call."""
    return dataclasses.replace(plan, limits=Limits(step_timeout_seconds=0.6))


def ended(threads):
    """Whether threads end."""
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    return not any(thread.is_alive() for thread in threads)


def test_calls_each_environment_in_one_thread_that_ends_with_it():
    log = Log(8)
    player = player_of(log)
    played(player, plans("seen", range(0, 16, 2)))
    player.close(PATIENCE_SECONDS)
    assert len(log.threads()) == 8
    assert threading.current_thread() not in log.threads()
    assert [what for what, _ in log].count("closed") == 8
    assert ended(log.threads())


def test_plays_others_to_their_end_next_to_a_hanging_environment():
    log = Log(8)
    player = player_of(log)
    hangs, *others = plans("seen", [1, *range(0, 14, 2)])
    episodes = played(player, [hasty(hangs), *others])
    assert episodes.pop(hangs.episode_id).stop_reason is StopReason.ENVIRONMENT_TIMEOUT
    assert {trajectory.stop_reason for trajectory in episodes.values()} == {StopReason.TERMINATED}
    player.close()
    log.let_go.set()
    # The one that was given up is closed when it returns, and all threads end.
    assert log.all_closed.wait(PATIENCE_SECONDS)
    assert ended(log.threads())


def test_waits_for_slow_environment_without_holding_up_others():
    log = Log(3)
    player = player_of(log)
    slow, *others = plans("seen", [1, 0, 2])
    for plan in (slow, *others):
        player.start(plan, RENDERER)
    finished = []
    while len(finished) < 2:
        finished += player.poll(1.0)
    assert {result.episode_id for result in finished} == {plan.episode_id for plan in others}
    log.let_go.set()
    while player.active:
        finished += player.poll(1.0)
    assert {result.trajectory.stop_reason for result in finished} == {StopReason.TERMINATED}
    player.close(PATIENCE_SECONDS)
    assert log.all_closed.is_set()


def test_closes_without_waiting_for_hangs():
    log = Log(4)
    player = player_of(log)
    for plan in plans("seen", [1, 0, 2, 4]):
        player.start(plan, RENDERER)
    while player.active > 1 or not log.hangs.is_set():
        player.poll(0.01)
    player.close(PATIENCE_SECONDS)
    # The one that hangs is not waited for, the others are.
    assert [what for what, _ in log].count("closed") == 3
    log.let_go.set()
    assert log.all_closed.wait(PATIENCE_SECONDS)
    assert ended(log.threads())


def test_closes_others_next_to_one_hanging_in_close():
    log = Log(3)

    class HangsInClose(Sound):
        def close(self):
            log.let_go.wait()

    made = iter([HangsInClose(), Seen(log), Seen(log), Seen(log)])
    player = EpisodePlayer(sampler=YES, make_env=lambda reference: next(made), executor=ThreadExecutor())
    played(player, plans("seen", [0, 2, 4, 6]))
    closing = threading.Thread(target=player.close, args=(PATIENCE_SECONDS,))
    closing.start()
    assert log.all_closed.wait(PATIENCE_SECONDS)
    log.let_go.set()
    closing.join()
