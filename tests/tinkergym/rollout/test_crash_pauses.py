"""An environment whose processes keep dying is tried again after pauses that grow."""

from functools import partial

import pytest

from tinkergym.rollout.crash_pauses import CrashPauses
from tinkergym.rollout.environment_process import ProcessHost
from tinkergym.rollout.executors import ProcessExecutor
from tinkergym.rollout.host_pool import HostPool
from tinkergym.schema.jobs.parts import EnvironmentRef

CRASHING, SOUND = EnvironmentRef(id="test/Crashing-v0"), EnvironmentRef(id="test/Sound-v0")


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class DyingHost(ProcessHost):
    """Its process ended by itself, without ever having been started."""

    died = True


class DyingProcesses(ProcessExecutor):
    def open(self, make, report, *, name):
        return DyingHost(make, report, name=name)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def hosts(clock):
    hosts = HostPool(DyingProcesses(4), partial(pytest.fail), lambda reports: None, clock=clock)
    yield hosts
    hosts.close(5.0)


def crash(hosts, environment=CRASHING):
    host, _ = hosts.take(environment)
    hosts.discard(host, hangs=False)


def test_doubles_the_pause_per_crash_up_to_a_bound(clock):
    pauses = CrashPauses(clock)
    lengths = []
    for _ in range(7):
        pauses.crashed("a")
        began = clock.now
        while pauses.holds_back("a", being_tried=False):
            clock.now += 0.5
        lengths.append(clock.now - began)
    assert lengths == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]


def test_counts_processes_that_die_together_as_one_crash(clock):
    pauses = CrashPauses(clock)
    for _ in range(8):
        pauses.crashed("a")
    clock.now = 1.0
    assert not pauses.holds_back("a", being_tried=False)


def test_tries_one_episode_after_pause_before_others(clock, hosts):
    crash(hosts)
    clock.now = 1.0
    assert not hosts.holds_back(CRASHING)
    host, _ = hosts.take(CRASHING)
    assert hosts.holds_back(CRASHING)
    hosts.give_back(host)
    assert not hosts.holds_back(CRASHING)


def test_holds_no_other_environment_back_by_a_crash(hosts):
    crash(hosts)
    assert hosts.holds_back(CRASHING)
    assert not hosts.holds_back(SOUND)
    assert not hosts.holds_back(CRASHING.model_copy(update={"kwargs": {"size": 3}}))


def test_ends_pause_by_episode_that_ends_well(hosts):
    other, _ = hosts.take(CRASHING)
    crash(hosts)
    assert hosts.holds_back(CRASHING)
    hosts.give_back(other)
    assert not hosts.holds_back(CRASHING)
