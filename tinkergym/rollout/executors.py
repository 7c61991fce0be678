"""Executors: where environments run while their episodes are played.

They share one protocol, so that a seed gives the same episode in each. An executor has a limited capacity;
the player only requests episodes while there is room, so a slow environment does not fill the memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

from tinkergym.errors import InvalidEnvironmentError, InvalidRequestError, TinkerGymError
from tinkergym.rollout.environment_host import AnyEnv, BaseHost, EnvironmentHost, Host, TakeReports
from tinkergym.rollout.environment_process import ProcessHost
from tinkergym.schema.jobs.parts import EnvironmentRef

MakeEnv = Callable[[EnvironmentRef], AnyEnv]


def made(make_env: MakeEnv, reference: EnvironmentRef) -> AnyEnv:
    """Create an environment, with a clear error if it fails.

    Raises:
        InvalidEnvironmentError: Its constructor fails.
        TinkerGymError: Its own error, if it is one of ours.
    """
    try:
        return make_env(reference)
    except TinkerGymError:
        raise
    except Exception as error:  # A user's constructor may raise anything.
        raise InvalidEnvironmentError(
            f"the environment cannot be created: {type(error).__name__}: {error}",
            hint="its constructor gets env_kwargs and nothing else",
            field="environment",
        ) from error


class Executor(Protocol):
    """Runs environments."""

    @property
    def capacity(self) -> int:
        """The most environments whose episodes are played at once."""
        ...

    @property
    def most_alive(self) -> int:
        """The most environments at once, with those that wait for their next episode."""
        ...

    def open(self, make: Callable[[], AnyEnv], report: TakeReports, *, name: str) -> Host:
        """Return a host for one environment, which its first call creates.

        Args:
            make: Creates the environment.
            report: Receives the result of each call; may be called from any thread.
            name: A name for messages about hanging environments.
        """
        ...


class ThreadExecutor:
    """Each environment in its own thread: a hanging one is abandoned, and the program continues.

    The default. Environments share one interpreter, so those that compute a lot slow each other down.
    """

    def __init__(self, capacity: int = 2**20) -> None:
        """Set the capacity; by default unlimited."""
        self.capacity = self.most_alive = _positive(capacity)

    def open(self, make: Callable[[], AnyEnv], report: TakeReports, *, name: str) -> Host:
        """Start a thread."""
        return EnvironmentHost(make, report, name=name)


class ProcessExecutor:
    """Each environment in its own process: a hanging one is killed, and a crash affects no other.

    For environments that compute a lot, block the interpreter, may crash it, or cannot share a process with
    others. A process takes about half a second to start and then plays many episodes. The environment's
    constructor must be picklable (a registered id always is), and, as always with `multiprocessing`, a script
    that uses this must be guarded with `if __name__ == "__main__":`.
    """

    def __init__(self, capacity: int | None = None) -> None:
        """Set how many processes there may be.

        By default four per core play, and as many may wait: a job with several environments takes turns
        between them, and would otherwise end the processes of one to start those of the other.
        """
        four_per_core = 4 * (os.cpu_count() or 1)
        self.capacity = four_per_core if capacity is None else _positive(capacity)
        self.most_alive = 2 * four_per_core if capacity is None else self.capacity

    def open(self, make: Callable[[], AnyEnv], report: TakeReports, *, name: str) -> Host:
        """Prepare a process; the first call starts it."""
        return ProcessHost(make, report, name=name)


class InlineExecutor:
    """Environments in the player's thread: fastest for fast environments, and simplest to debug.

    A call cannot be interrupted: one that takes longer than `limits.step_timeout_seconds` fails its episode
    when it returns, and a hanging one stops everything. Ctrl-C interrupts the environment's code.
    """

    def __init__(self, capacity: int = 2**20) -> None:
        """Set the capacity; by default unlimited."""
        self.capacity = self.most_alive = _positive(capacity)

    def open(self, make: Callable[[], AnyEnv], report: TakeReports, *, name: str) -> Host:
        """Return a host without a thread."""
        return InlineHost(make, report, name=name)


class InlineHost(BaseHost):
    """Runs each call at once, in the caller's thread."""

    _caught = (Exception, SystemExit)
    """Here an interrupt is for the program."""

    def call(self, call_id: int, function: Callable[[AnyEnv], Any]) -> None:
        """Run `function(env)` and report."""
        self.report((self._run(call_id, function),))

    def close(self) -> None:
        """Close the environment."""
        self._close_environment()

    def abandon(self) -> bool:
        """Close the environment; no call of it can be running."""
        self.close()
        return False

    def join(self, timeout_seconds: float) -> bool:
        """Return True: all has ended."""
        del timeout_seconds
        return True

    def where(self) -> str:
        """Return nothing: no call is running."""
        return ""


def executor_called(name: str) -> Executor:
    """Return a new executor by its name in job settings: `thread` or `process`."""
    return ProcessExecutor() if name == "process" else ThreadExecutor()


def _positive(capacity: int) -> int:
    if capacity < 1:
        raise InvalidRequestError(f"capacity must be at least 1, not {capacity}", field="capacity")
    return capacity
