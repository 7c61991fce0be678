"""HostPool: environments that wait for their next episode, and how fast each kind is."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from tinkergym.rollout.call_register import CallRegister
from tinkergym.rollout.crash_pauses import CrashPauses
from tinkergym.rollout.environment_host import AnyEnv, BaseHost, Host, TakeReports
from tinkergym.rollout.executors import Executor, MakeEnv
from tinkergym.rollout.game_table import seated
from tinkergym.rollout.shared_thread import LONG_SECONDS
from tinkergym.schema.jobs.parts import EnvironmentRef

__all__ = ["AnyEnv", "HostPool", "MakeEnv"]

_MOST_IDLE = 1024
_CALL_SECONDS = 1.0
"""How long `close` waits for calls that are running. Those that take longer may hang."""

_CALLS_THAT_TELL = 64
"""Number of calls that determine the speed of an environment."""
_QUICK_SECONDS = 0.001
"""Environments whose resets and steps take less than this on average are fast."""
_SLOW_SECONDS = 0.02
"""Environments whose resets, steps or constructors take more on average are no longer fast."""


class Pace:
    """The speed of one kind of environment, by the means of about its latest 64 calls."""

    def __init__(self) -> None:
        self._means = {"make": 0.0, "reset": 0.0, "step": 0.0}
        self._counts = {"make": 0, "reset": 0, "step": 0}
        self._slow = False
        self._tried = self._proven = False
        self.quick = False
        """Whether they are fast. Once a kind has become slow, it stays slow."""

    def took(self, call: str, seconds: float) -> None:
        """Record the duration of a call: `make`, `reset` or `step`; infinity if it hung."""
        if math.isinf(seconds):
            self.quick, self._slow = False, True
        elif self.quick:
            self._go_on(call, seconds)
        elif not self._slow and call != "make":  # The first ones import modules and wait for one another.
            self._add(call, seconds, share=1 / min(self._counts[call] + 1, _CALLS_THAT_TELL))
            resets, steps = self._counts["reset"], self._counts["step"]
            known = min(resets, steps) > 0 and resets + steps >= _CALLS_THAT_TELL
            self.quick = known and max(self._means.values()) < _QUICK_SECONDS

    def _go_on(self, call: str, seconds: float) -> None:
        # A single slow call says little, but the first construction says everything about constructors.
        share = 1 if call == "make" and not self._proven else 1 / _CALLS_THAT_TELL
        self._add(call, seconds, share=share)
        self._proven = self._proven or call == "make"
        # The other means are unchanged.
        if seconds > LONG_SECONDS or self._means[call] > _SLOW_SECONDS:
            self.quick, self._slow = False, True

    def _add(self, call: str, seconds: float, *, share: float) -> None:
        self._counts[call] += 1
        self._means[call] += share * (seconds - self._means[call])

    def permits_another(self) -> bool:
        """Return whether an idle one that is in the wrong place should be created again.

        The cost of creating one in the right place is only known after one was created there.
        """
        first, self._tried = not self._tried, True
        return first or self._proven or self._slow


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
        self._busy: dict[Host, str] = {}
        self._idle: dict[Host, str] = {}
        self._closing: list[Host] = []
        self._paces: dict[str, Pace] = defaultdict(Pace)
        self._pauses = CrashPauses(clock)

    @property
    def full(self) -> bool:
        """Whether there is no room for another environment."""
        return len(self._busy) >= self._executor.capacity

    def holds_back(self, environment: EnvironmentRef) -> bool:
        """Whether an episode must wait: the environment's process crashed and may not be restarted yet."""
        key = _key(environment)
        return self._pauses.holds_back(key, being_tried=key in self._busy.values())

    def take(self, environment: EnvironmentRef) -> tuple[Host, bool]:
        """Return a host of this environment, and whether its environment has yet to be created."""
        key = _key(environment)
        while (host := self._newest_idle(key)) is not None:
            del self._idle[host]
            if self._well_placed(host, key):
                self._busy[host] = key
                return host, False
            self._close(host)
        name = f"{environment.id} #{next(self._numbers)}"
        while self._idle and len(self._busy) + len(self._idle) >= self._executor.most_alive:
            self._close_oldest()
        make = partial(_make, self._make_env, environment, gym.registry.get(environment.id))
        host = self._executor.open(make, self._report, name=name, quick=self._paces[key].quick)
        if isinstance(host, BaseHost):
            host.register = self._register
        self._busy[host] = key
        return host, True

    def took(self, host: Host, call: str, seconds: float) -> None:
        """Record the duration of a host's call; see `Pace.took`."""
        self._paces[self._busy[host]].took(call, seconds)

    def look_after(self) -> None:
        """Make sure that no environment waits for long behind another. Call this regularly."""
        self._executor.look_after()

    def give_back(self, host: Host) -> None:
        """Keep a host for another episode, unless its environment should be created again."""
        key = self._busy.pop(host)
        self._pauses.went_well(key)
        if not self._well_placed(host, key):
            self._close(host)
            return
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

    def _well_placed(self, host: Host, key: str) -> bool:
        pace = self._paces[key]
        return self._executor.keeps(host, quick=pace.quick) or not pace.permits_another()

    def _close_oldest(self) -> None:
        oldest = next(iter(self._idle))
        del self._idle[oldest]
        self._close(oldest)

    def _close(self, host: Host) -> None:
        host.close()
        self._closing = [other for other in self._closing if not other.join(0.0)]
        self._closing.append(host)


def _key(environment: EnvironmentRef) -> str:
    return f"{environment.id} {json.dumps(environment.kwargs, sort_keys=True)}"


def _make(make_env: MakeEnv, environment: EnvironmentRef, spec: EnvSpec | None) -> AnyEnv:
    # A separate process lacks what this program registered itself.
    if spec is not None and spec.id not in gym.registry:
        gym.registry[spec.id] = spec
    made: AnyEnv = seated(make_env(environment))
    return made
