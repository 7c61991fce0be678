"""Executors: where environments live while their episodes are played.

One protocol for all, so that a seed gives the same episode in each. An executor has room for so many
environments; whoever plays asks for episodes only while there is some, and so a slow environment slows the
asking, not the memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

from tinkergym.errors import InvalidEnvironmentError, InvalidRequestError, TinkerGymError
from tinkergym.rollout.environment_host import AnyEnv, BaseHost, EnvironmentHost, Host, TakeReports
from tinkergym.rollout.environment_process import ProcessHost
from tinkergym.rollout.shared_thread import SharedHost, SharedThread
from tinkergym.schema.job_spec import EnvironmentRef

MakeEnv = Callable[[EnvironmentRef], AnyEnv]


def made(make_env: MakeEnv, reference: EnvironmentRef) -> AnyEnv:
    """Make an environment, and say in a sentence if it cannot be.

    Raises:
        InvalidEnvironmentError: Its constructor fails.
        TinkerGymError: What that raised, if it is of ours.
    """
    try:
        return make_env(reference)
    except TinkerGymError:
        raise
    except Exception as error:  # whatever a user's constructor raises
        raise InvalidEnvironmentError(
            f"the environment cannot be made: {type(error).__name__}: {error}",
            hint="its constructor gets env_kwargs and nothing else",
            field="environment",
        ) from error


class Executor(Protocol):
    """A place for environments."""

    @property
    def capacity(self) -> int:
        """How many environments it has room for at once."""
        ...

    def open(self, make: Callable[[], AnyEnv], report: TakeReports, *, name: str, quick: bool) -> Host:
        """Return a host for one environment, which its first call makes.

        Args:
            make: Creates the environment.
            report: Takes what came of each call; may be called from any thread.
            name: For people who look for what hangs.
            quick: Whether environments like it have been quick so far.
        """
        ...

    def keeps(self, host: Host, *, quick: bool) -> bool:
        """Return whether an environment of that pace is well where it is, or better made anew."""
        ...

    def look_after(self) -> None:
        """See to it that nothing waits for long behind a call that hangs; called every now and then."""
        ...


class ThreadExecutor:
    """Each environment in a thread of its own: what hangs is left behind, and the program goes on.

    The default. Environments share one interpreter, so those that compute for long slow each other. Kinds
    that have shown to be quick are made anew in a thread that they share; see `shared_thread`.
    """

    def __init__(self, capacity: int = 2**20) -> None:
        """Have room for `capacity` environments; by default for all there are."""
        self.capacity = _positive(capacity)
        self._shared = SharedThread()

    def open(self, make: Callable[[], AnyEnv], report: TakeReports, *, name: str, quick: bool) -> Host:
        """Start a thread, or add to the one that quick environments share."""
        if quick:
            return self._shared.open(make, report, name=name)
        return EnvironmentHost(make, report, name=name)

    def keeps(self, host: Host, *, quick: bool) -> bool:
        """Return whether it shares a thread just if it is quick, and that is the one it was made in."""
        if isinstance(host, SharedHost):
            return quick and not host.displaced
        return not quick

    def look_after(self) -> None:
        """Let those that share a thread go on in another one if a call takes long."""
        self._shared.look_after()


class ProcessExecutor:
    """Each environment in a process of its own: what hangs is killed, and what crashes harms no other.

    For environments that compute much, hold the interpreter, may crash it, or cannot live in one process
    with others. A process takes about half a second to start and then plays many episodes. What makes the
    environment must be picklable (a registered id always is), and, as always with `multiprocessing`, a
    script that uses this guards its start with `if __name__ == "__main__":`.
    """

    def __init__(self, capacity: int | None = None) -> None:
        """Have room for `capacity` environments; by default four per core."""
        self.capacity = _positive(4 * (os.cpu_count() or 1) if capacity is None else capacity)

    def open(self, make: Callable[[], AnyEnv], report: TakeReports, *, name: str, quick: bool) -> Host:
        """Prepare a process; the first call starts it."""
        del quick
        return ProcessHost(make, report, name=name)

    def keeps(self, host: Host, *, quick: bool) -> bool:
        """Return True: a process is not started anew."""
        del host, quick
        return True

    def look_after(self) -> None:
        """Do nothing: no environment waits for another."""


class InlineExecutor:
    """Environments in the thread of whoever plays: quickest for quick ones, and simplest to debug.

    A call cannot be interrupted: one that takes longer than `limits.step_timeout_seconds` fails its episode
    when it returns, and one that hangs stops everything. Ctrl-C reaches the environment's code.
    """

    def __init__(self, capacity: int = 2**20) -> None:
        """Have room for `capacity` environments; by default for all there are."""
        self.capacity = _positive(capacity)

    def open(self, make: Callable[[], AnyEnv], report: TakeReports, *, name: str, quick: bool) -> Host:
        """Return a host without a thread."""
        del quick
        return InlineHost(make, report, name=name)

    def keeps(self, host: Host, *, quick: bool) -> bool:
        """Return True: there is one place only."""
        del host, quick
        return True

    def look_after(self) -> None:
        """Do nothing: no environment waits for another."""


class InlineHost(BaseHost):
    """Runs each call at once, in the caller's thread."""

    _caught = (Exception, SystemExit)
    """Here an interrupt is meant for the program."""

    def call(self, call_id: int, function: Callable[[AnyEnv], Any]) -> None:
        """Run `function(env)` and report."""
        self.report((self._run(call_id, function),))

    def waited_seconds(self) -> float:
        """Return 0: calls run at once."""
        return 0.0

    def close(self) -> None:
        """Close the environment."""
        self._close_environment()

    def abandon(self) -> bool:
        """Close the environment: no call of it can be running."""
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
    """Return a new executor by the name that a job knows it by: `thread` or `process`."""
    return ProcessExecutor() if name == "process" else ThreadExecutor()


def _positive(capacity: int) -> int:
    if capacity < 1:
        raise InvalidRequestError(f"there must be room for one environment, not {capacity}", field="capacity")
    return capacity
