"""Quick environments share a thread, and yet none of them waits for ever for another."""

import dataclasses
import threading
import time

import pytest

from tests.tinkergym.rollout.test_executors import (
    PATIENCE_SECONDS,
    RENDERER,
    YES,
    SharedThreadExecutor,
    plans,
)
from tinkergym.rollout.executors import InlineExecutor, InlineHost, ThreadExecutor
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
        self.log.let_go.wait()

    def close(self):
        self.note("closed")
        if sum(what == "closed" for what, _ in self.log) == self.log.environments:
            self.log.all_closed.set()


class Log(list):
    """What environments note."""

    def __init__(self, environments):
        self.environments = environments
        self.let_go, self.all_closed = threading.Event(), threading.Event()

    def threads(self):
        return {thread for _, thread in self}


def player_of(log, executor=None):
    return EpisodePlayer(
        sampler=YES, make_env=lambda reference: Seen(log), executor=executor or SharedThreadExecutor()
    )


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


def test_shows_environments_one_thread_that_ends_with_their_last():
    log = Log(8)
    player = player_of(log)
    played(player, plans("seen", range(0, 16, 2)))
    player.close()
    (thread,) = log.threads()
    assert thread is not threading.current_thread()
    assert [what for what, _ in log].count("closed") == 8
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_moves_others_to_another_thread_behind_a_hanging_environment():
    log = Log(8)
    player = player_of(log)
    hangs, *others = plans("seen", [1, *range(0, 14, 2)])
    episodes = played(player, [hasty(hangs), *others])
    assert episodes.pop(hangs.episode_id).stop_reason is StopReason.ENVIRONMENT_TIMEOUT
    assert {trajectory.stop_reason for trajectory in episodes.values()} == {StopReason.TERMINATED}
    player.close()
    first, second = log.threads()
    log.let_go.set()
    # The one that was given up is closed when it returns, and both threads end.
    assert log.all_closed.wait(PATIENCE_SECONDS)
    for thread in (first, second):
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


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
    player.close()
    assert log.all_closed.is_set()


def test_closes_without_waiting_for_hangs_and_closes_those_behind():
    log = Log(4)
    player = player_of(log)
    for plan in plans("seen", [1, 0, 2, 4]):
        player.start(plan, RENDERER)
    while "called" not in [what for what, _ in log]:
        player.poll(0.01)
    player.close(PATIENCE_SECONDS)
    # The one that hangs is not waited for, the others are.
    assert [what for what, _ in log].count("closed") == 3
    log.let_go.set()
    assert log.all_closed.wait(PATIENCE_SECONDS)
    for thread in log.threads():
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def test_closes_who_waited_behind_one_hanging_in_close():
    log = Log(3)

    class HangsInClose(Sound):
        def close(self):
            log.let_go.wait()

    made = iter([HangsInClose(), Seen(log), Seen(log), Seen(log)])
    player = EpisodePlayer(
        sampler=YES, make_env=lambda reference: next(made), executor=SharedThreadExecutor()
    )
    played(player, plans("seen", [0, 2, 4, 6]))
    closing = threading.Thread(target=player.close, args=(PATIENCE_SECONDS,))
    closing.start()
    assert log.all_closed.wait(PATIENCE_SECONDS)
    log.let_go.set()
    closing.join()


def test_remakes_kind_where_a_hang_left_it_in_another_thread():
    log = Log(4)
    player = player_of(log)
    hangs, *others = plans("seen", [1, 0, 2, 4])
    played(player, [hasty(hangs), *others])
    log.clear()
    again = [dataclasses.replace(plan, episode_id=f"{plan.episode_id} again") for plan in others]
    played(player, again)
    # All in the new thread, the making too.
    (thread,) = {thread for what, thread in log if what != "closed"}
    assert [what for what, _ in log].count("made") >= 1
    log.let_go.set()
    player.close()
    thread.join(PATIENCE_SECONDS)


def test_blames_nobody_for_time_spent_behind_other_environments():
    now = [0.0]

    class Behind(InlineHost):
        """Begins a call a hundred seconds after it is made, and then takes one of the two that it may."""

        waited = 0.0

        def call(self, call_id, function):
            now[0] += 101.0
            self.waited = 100.0
            super().call(call_id, function)

        def waited_seconds(self):
            return self.waited

    class BehindOthers(InlineExecutor):
        def open(self, make, report, *, name, quick):
            return Behind(make, report, name=name)

    def clock():
        now[0] += 0.001
        return now[0]

    player = EpisodePlayer(
        sampler=YES, make_env=lambda reference: Sound(), executor=BehindOthers(), clock=clock
    )
    limits = Limits(step_timeout_seconds=2.0, episode_timeout_seconds=3600.0)
    (trajectory,) = played(player, plans("sound", [0], limits=limits)).values()
    player.close()
    assert trajectory.stop_reason is StopReason.TERMINATED


def named(name, environment, seeds):
    """Plans whose episodes have a name of their own."""
    return [dataclasses.replace(plan, episode_id=f"{name} {plan.seed}") for plan in plans(environment, seeds)]


def rounds(player, count):
    """Play so many rounds of eight episodes."""
    for number in range(count):
        played(player, named(f"round {number}", "seen", range(0, 16, 2)))


def test_lets_quick_kind_share_a_thread():
    log = Log(-1)
    player = player_of(log, ThreadExecutor())
    # The machine may be busy with something else for a while.
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        assert time.monotonic() < deadline
        del log[:]
        rounds(player, 5)
        if len({thread for what, thread in log if what == "called"}) == 1:
            break
    player.close()


@pytest.mark.parametrize("slow", ["__init__", "start"])
def test_keeps_threads_of_a_kind_slow_to_begin(slow):
    made = []

    class Slow(Sound):
        def __init__(self):
            made.append(self)
            self.wait("__init__")

        def start(self, options):
            self.wait("start")
            return super().start(options)

        def wait(self, where):
            if where == slow:
                threading.Event().wait(0.03)

    player = EpisodePlayer(sampler=YES, make_env=lambda reference: Slow(), executor=ThreadExecutor())
    for number in range(20):
        played(player, named(f"round {number}", "slow", range(0, 16, 2)))
    player.close()
    # At most one was made anew, to see what it costs.
    assert len(made) <= 10


def test_shares_no_thread_with_a_kind_that_hung():
    log = Log(-1)
    player = player_of(log, ThreadExecutor())
    rounds(player, 5)
    (hangs,) = named("hangs", "seen", [1])
    played(player, [hasty(hangs)])
    log.let_go.set()
    rounds(player, 5)
    del log[:]
    rounds(player, 1)
    assert len({thread for what, thread in log if what == "called"}) == 8
    player.close()
