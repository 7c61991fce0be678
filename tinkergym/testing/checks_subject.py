"""Shared by the checks of an environment: the environment under test, and comparable episodes."""

from __future__ import annotations

import hashlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np

from tinkergym.errors import TinkerGymError
from tinkergym.evaluation.baselines import RandomTextPolicy, TextPolicy
from tinkergym.user_code.quoting import quoted

SEEDS = range(5)
MOST_STEPS = 24

AnyEnv = gym.Env[Any, Any]


class CheckFailedError(TinkerGymError):
    """The environment breaks a guarantee; the text says which and what to do."""


class CheckSkippedError(TinkerGymError):
    """The check does not apply to this environment; the text says why."""


class TooSlowError(BaseException):
    """A time limit has passed. Not an `Exception`, so that an environment cannot catch it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The environment under test."""

    make: Callable[[], AnyEnv]
    """Creates a new one."""
    actions: Callable[[int], list[str]] | None = None
    """From a seed to actions to play with; None uses words of the observations."""

    @contextmanager
    def closing(self) -> Iterator[Subject]:
        """Yield this subject; what it creates meanwhile is closed: that may end processes."""
        created: list[AnyEnv] = []

        def make() -> AnyEnv:
            created.append(self.make())
            return created[-1]

        try:
            yield replace(self, make=make)
        finally:
            for env in created:
                # Foreign code; that closing works is a check of its own.
                with suppress(Exception):
                    env.close()

    def policy(self, env: AnyEnv, seed: int) -> TextPolicy:
        """Return the policy: the given actions, else legal ones if the environment lists them, else words.

        Legal actions reach further into an episode than random words.
        """
        if self.actions is not None:
            return _Listed(self.actions(seed))
        if seed % 2 == 0 and env.has_wrapper_attr("legal_actions"):
            return _LegalOrRandom(env, seed)
        return RandomTextPolicy(seed)

    def episode(self, env: AnyEnv, seed: int, *, policy_seed: int | None = None) -> list[Any]:
        """Play an episode and return its results in a form that `==` compares."""
        return [comparable(entry) for entry in self.entries(env, seed, policy_seed=policy_seed)]

    def entries(
        self,
        env: AnyEnv,
        seed: int,
        *,
        policy_seed: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> Iterator[tuple[Any, ...]]:
        """Play an episode and yield the results of `reset` and each `step`."""
        policy = self.policy(env, seed if policy_seed is None else policy_seed)
        entry: tuple[Any, ...] = env.reset(seed=seed, options=options)
        yield entry
        for _ in range(MOST_STEPS):
            entry = env.step(policy.act(entry[0]))
            yield entry
            if entry[2] or entry[3]:
                return


class _Listed:
    def __init__(self, actions: list[str]) -> None:
        self._actions = actions
        self._next = 0

    def act(self, observation: Any) -> str:
        action = self._actions[self._next % len(self._actions)]
        self._next += 1
        return action


class _LegalOrRandom:
    """Legal actions; words if the environment lists none in this state."""

    def __init__(self, env: AnyEnv, seed: int) -> None:
        self._legal_actions = env.get_wrapper_attr("legal_actions")
        self._random, self._rng = RandomTextPolicy(seed), np.random.default_rng([seed, 1])

    def act(self, observation: Any) -> str:
        # Called once: in some games it takes longer than the move.
        known = self._legal_actions()
        return known[int(self._rng.integers(len(known)))] if known else self._random.act(observation)


def comparable(value: Any) -> Any:
    """Return a value whose `==` compares content, including arrays."""
    if isinstance(value, np.ndarray):
        return ("array", value.shape, str(value.dtype), hashlib.sha256(value.tobytes()).hexdigest())
    if isinstance(value, Mapping):
        return {str(key): comparable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [comparable(item) for item in value]
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return value


def first_difference(one: list[Any], other: list[Any]) -> str:
    """Say where two episodes first differ."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            where = "reset" if index == 0 else f"step {index}"
            return f"at {where}: {quoted(left)} and {quoted(right)}"
    return f"one has {len(one) - 1} steps, the other {len(other) - 1}"


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TooSlowError` if the body takes longer.

    In the main thread the body is interrupted; elsewhere, or without such signals, it is only measured.
    """
    began = time.monotonic()
    interrupts = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if not interrupts:
        yield
        if time.monotonic() - began > seconds:
            raise TooSlowError
        return

    def stop(*_: object) -> None:
        raise TooSlowError

    handler = signal.getsignal(signal.SIGALRM)
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if remaining:  # An outer limit, such as pytest's, continues where it was.
            left = max(remaining - (time.monotonic() - began), 0.001)
            signal.setitimer(signal.ITIMER_REAL, left, interval)
