"""HostPool: environments that wait for their next episode."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from functools import partial

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from tinkergym.registration.packs import installed_ns
from tinkergym.rollout.call_register import CallRegister
from tinkergym.rollout.crash_pauses import CrashPauses
from tinkergym.rollout.environment_host import AnyEnv, BaseHost, Host, TakeReports
from tinkergym.rollout.executors import Executor, MakeEnv
from tinkergym.rollout.game_table import seated
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.tasks.pinned import refuse_other_data

__all__ = ["AnyEnv", "HostPool", "MakeEnv"]

_MOST_IDLE = 1024
_CALL_SECONDS = 1.0
"""How long `close` waits for calls that are running. Those that take longer may hang."""


class HostPool:
    """Creates hosts and keeps those whose episode ended well.

    Creating an environment may cost more than an episode, and `reset` starts from scratch whatever was played
    before; `EnvContract` tests this.
    """

    def __init__(
        self,
        executor: Executor,
        make_env: MakeEnv,
        report: TakeReports,
        register: CallRegister | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create environments with `make_env` on `executor`, and send their reports to `report`.

        With a register, the running calls of this process are recorded there.
        """
        self._executor = executor
        self._register = register
        self._make_env = make_env
        self._report = report
        self._numbers = itertools.count(1)
        # By host, what it plays; of the idle ones, those that wait longest come first.
        self._busy: dict[Host, str] = {}
        self._idle: dict[Host, str] = {}
        self._closing: list[Host] = []
        self._pauses = CrashPauses(clock)

    @property
    def full(self) -> bool:
        """Whether there is no room for another environment."""
        return len(self._busy) >= self._executor.capacity

    def holds_back(self, environment: EnvironmentRef, data_sha256: str = "") -> bool:
        """Whether an episode must wait: the environment's process crashed and may not be restarted yet."""
        key = _key(environment, data_sha256)
        return self._pauses.holds_back(key, being_tried=key in self._busy.values())

    def take(self, environment: EnvironmentRef, data_sha256: str = "") -> tuple[Host, bool]:
        """Return a host of this environment, and whether its environment has yet to be created.

        Args:
            environment: Its name and arguments.
            data_sha256: The hash that its tasks must have when it is created; empty for any.
        """
        key = _key(environment, data_sha256)
        if (host := self._newest_idle(key)) is not None:
            del self._idle[host]
            self._busy[host] = key
            return host, False
        name = f"{environment.id} #{next(self._numbers)}"
        while self._idle and len(self._busy) + len(self._idle) >= self._executor.most_alive:
            self._close_oldest()
        make = partial(_make, self._make_env, environment, gym.registry.get(environment.id), data_sha256)
        host = self._executor.open(make, self._report, name=name)
        if isinstance(host, BaseHost):
            host.register = self._register
        self._busy[host] = key
        return host, True

    def give_back(self, host: Host) -> None:
        """Keep a host for another episode."""
        key = self._busy.pop(host)
        self._pauses.went_well(key)
        self._idle[host] = key
        if len(self._idle) > min(_MOST_IDLE, self._executor.most_alive):
            self._close_oldest()

    def discard(self, host: Host, *, hangs: bool) -> None:
        """Close a host whose environment cannot be trusted, or abandon it if a call of it still runs."""
        key = self._busy.pop(host)
        if host.died:
            self._pauses.crashed(key)
        if not hangs:
            self._close(host)
        elif not host.abandon():
            self._closing.append(host)

    def close(self, timeout_seconds: float) -> None:
        """Close all hosts and wait for them, for those with a running call at most a second.

        Those that do not end in time are abandoned as daemons.
        """
        for host in self._busy:
            host.abandon()
        for host in self._idle:
            host.close()
        began = time.monotonic()
        for hosts, seconds in (
            (self._busy, min(_CALL_SECONDS, timeout_seconds)),
            ([*self._closing, *self._idle], timeout_seconds),
        ):
            for host in hosts:
                host.join(max(0.0, began + seconds - time.monotonic()))
        self._busy.clear()
        self._idle.clear()
        self._closing.clear()

    def _newest_idle(self, key: str) -> Host | None:
        return next((host for host, idle_key in reversed(self._idle.items()) if idle_key == key), None)

    def _close_oldest(self) -> None:
        oldest = next(iter(self._idle))
        del self._idle[oldest]
        self._close(oldest)

    def _close(self, host: Host) -> None:
        host.close()
        # Those that have ended since need not be waited for.
        self._closing = [other for other in self._closing if not other.join(0.0)]
        self._closing.append(host)


def _key(environment: EnvironmentRef, data_sha256: str) -> str:
    # A pack that was installed again is another environment, and so is one with other data.
    installed = installed_ns(environment.id)
    return f"{environment.id} {installed} {json.dumps(environment.kwargs, sort_keys=True)} {data_sha256}"


def _make(make_env: MakeEnv, environment: EnvironmentRef, spec: EnvSpec | None, data_sha256: str) -> AnyEnv:
    # A separate process lacks what this program registered itself.
    if spec is not None and spec.id not in gym.registry:
        gym.registry[spec.id] = spec
    made: AnyEnv = seated(make_env(environment))
    try:
        refuse_other_data(made, data_sha256, environment.id)
    except BaseException:
        made.close()
        raise
    return made
