"""Quick environments share a thread, and yet none of them waits for ever for another."""

import threading

import pytest

from tests.tinkergym.loop.test_executors import PATIENCE_SECONDS, RENDERER, YES, SharedThreadExecutor, plans
from tinkergym.loop.executors import InlineExecutor, InlineHost, ThreadExecutor
from tinkergym.loop.host_pool import HostPool, Pace
from tinkergym.loop.player import EpisodePlayer
from tinkergym.loop.trajectory import StopReason
from tinkergym.testing.faults import Sound
from tinkergym.wire import EnvironmentRef, Limits


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
    limits = Limits(step_timeout_seconds=0.3)
    return type(plan)(**{name: getattr(plan, name) for name in plan.__slots__} | {"limits": limits})


def test_all_that_an_environment_sees_is_one_thread_which_ends_with_the_last_of_them():
    log = Log(8)
    player = player_of(log)
    played(player, plans("seen", range(0, 16, 2)))
    player.close()
    (thread,) = log.threads()
    assert thread is not threading.current_thread()
    assert [what for what, _ in log].count("closed") == 8
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_behind_an_environment_that_hangs_the_others_go_on_in_another_thread():
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


def test_an_environment_that_takes_long_is_waited_for_and_the_others_are_not_held_up():
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


def test_closing_waits_for_no_environment_that_hangs():
    log = Log(4)
    player = player_of(log)
    for plan in plans("seen", [1, 0, 2, 4]):
        player.start(plan, RENDERER)
    while "called" not in [what for what, _ in log]:
        player.poll(0.01)
    player.close()
    log.let_go.set()
    assert log.all_closed.wait(PATIENCE_SECONDS)
    for thread in log.threads():
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def test_time_spent_behind_other_environments_is_nobodys_delay():
    now = [0.0]

    def clock():
        now[0] += 0.02
        return now[0]

    class Behind(InlineHost):
        """Begins a call after more than two seconds, when looked at once more. It may take one and a half."""

        def call(self, call_id, function):
            self.pending, self.looks = (call_id, function), 0

        def waits(self):
            now[0] += 1.0
            self.looks += 1
            if self.looks < 3:
                return True
            super().call(*self.pending)
            return False

    class BehindOthers(InlineExecutor):
        def open(self, make, report, *, name, quick):
            return Behind(make, report, name=name)

    player = EpisodePlayer(
        sampler=YES, make_env=lambda reference: Sound(), executor=BehindOthers(), clock=clock
    )
    limits = Limits(step_timeout_seconds=1.5)
    (trajectory,) = played(player, plans("sound", [0], limits=limits)).values()
    player.close()
    assert trajectory.stop_reason is StopReason.TERMINATED


def test_a_kind_that_is_quick_comes_to_share_a_thread():
    opened = []

    class Noted(ThreadExecutor):
        def open(self, make, report, *, name, quick):
            opened.append(quick)
            return super().open(make, report, name=name, quick=quick)

    pool = HostPool(Noted(), lambda reference: Sound(), lambda reports: None)
    environment = EnvironmentRef(id="quick")
    for _ in range(100):
        host, _ = pool.take(environment)
        pool.took(host, 0.0001)
        pool.give_back(host)
    host, _ = pool.take(EnvironmentRef(id="another kind"))
    pool.give_back(host)
    pool.close(PATIENCE_SECONDS)
    assert opened == [False, True, False]


def pace_of(*seconds):
    pace = Pace()
    for each in seconds:
        pace.took(each)
    return pace


@pytest.mark.parametrize(
    ("seconds", "quick"),
    [
        ([0.0001] * 64, False),  # nothing is known yet
        ([0.0001] * 65, True),
        ([3.0, *[0.0001] * 64], True),  # the first call imports
        ([0.005] * 1000, False),
        ([*[0.0001] * 65, 0.2, *[0.0001] * 10], True),  # a hiccup
        ([*[0.0001] * 65, 0.3], False),  # the others had to be moved
        ([*[0.0001] * 65, *[0.02] * 100], False),
        ([*[0.0001] * 65, 0.3, *[0.0001] * 1000], False),  # once is enough
    ],
)
def test_quick_is_what_has_answered_quickly_and_still_does(seconds, quick):
    assert pace_of(*seconds).quick is quick
