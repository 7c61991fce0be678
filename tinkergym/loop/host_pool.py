"""HostPool: environments that wait for their next episode."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from functools import partial

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from tinkergym.loop.environment_host import AnyEnv, Host, Report
from tinkergym.loop.executors import Executor, MakeEnv
from tinkergym.wire import EnvironmentRef

__all__ = ["AnyEnv", "HostPool", "MakeEnv"]

_MOST_IDLE = 1024


class HostPool:
    """Makes hosts and keeps those whose episode ended well.

    Making an environment may cost more than an episode, and `reset` starts afresh whatever was played before;
    `EnvContract` tests that an environment does so.
    """

    def __init__(self, executor: Executor, make_env: MakeEnv, report: Callable[[Report], None]) -> None:
        """Make environments with `make_env` on `executor` and send what they report to `report`."""
        self._executor = executor
        self._make_env = make_env
        self._report = report
        self._numbers = itertools.count(1)
        self._busy: dict[Host, str] = {}
        self._idle: dict[Host, str] = {}
        self._closing: list[Host] = []

    @property
    def full(self) -> bool:
        """Whether there is no room for another environment that is played in."""
        return len(self._busy) >= self._executor.capacity

    def take(self, environment: EnvironmentRef) -> tuple[Host, bool]:
        """Return a host of this environment, and whether its environment has yet to be made."""
        key = f"{environment.id} {json.dumps(environment.kwargs, sort_keys=True)}"
        host = next((host for host, idle_key in reversed(self._idle.items()) if idle_key == key), None)
        if host is not None:
            del self._idle[host]
            self._busy[host] = key
            return host, False
        name = f"{environment.id} #{next(self._numbers)}"
        while self._idle and len(self._busy) + len(self._idle) >= self._executor.capacity:
            self._close_oldest()
        make = partial(_make, self._make_env, environment, gym.registry.get(environment.id))
        host = self._executor.open(make, self._report, name=name)
        self._busy[host] = key
        return host, True

    def give_back(self, host: Host) -> None:
        """Keep a host for another episode."""
        self._idle[host] = self._busy.pop(host)
        if len(self._idle) > min(_MOST_IDLE, self._executor.capacity):
            self._close_oldest()

    def discard(self, host: Host, *, hangs: bool) -> None:
        """Close a host whose environment cannot be trusted, or leave it behind if a call of it still runs."""
        del self._busy[host]
        if hangs:
            host.abandon()
        else:
            self._close(host)

    def close(self, timeout_seconds: float) -> None:
        """Close all hosts and wait for them; those that do not end in time are left behind as daemons."""
        for host in [*self._busy, *self._idle]:
            self._close(host)
        self._busy.clear()
        self._idle.clear()
        ends_at = time.monotonic() + timeout_seconds
        for host in self._closing:
            host.join(max(0.0, ends_at - time.monotonic()))
        self._closing.clear()

    def _close_oldest(self) -> None:
        oldest = next(iter(self._idle))
        del self._idle[oldest]
        self._close(oldest)

    def _close(self, host: Host) -> None:
        host.close()
        self._closing = [other for other in self._closing if not other.join(0.0)]
        self._closing.append(host)


def _make(make_env: MakeEnv, environment: EnvironmentRef, spec: EnvSpec | None) -> AnyEnv:
    # In a process of its own nothing is registered yet that this program registered by itself.
    if spec is not None and spec.id not in gym.registry:
        gym.registry[spec.id] = spec
    return make_env(environment)
