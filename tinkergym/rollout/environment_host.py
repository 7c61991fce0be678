"""Hosts: what runs the calls of one environment. EnvironmentHost does so in a thread of its own.

The thread makes the environment, resets, steps and closes it, so what is bound to a thread (SQLite
connections, browsers) works, calls never overlap, and an environment that hangs costs its own thread and
nothing else. Where else environments may live is told in `executors`.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

import gymnasium as gym

from tinkergym.errors import InvalidEnvironmentError, InvalidRewardError, OpponentFailedError
from tinkergym.messages import is_unicode
from tinkergym.rollout.call_register import CallRegister
from tinkergym.trajectory.trajectory import StopReason

AnyEnv = gym.Env[Any, Any]

_MOST_ERROR_CHARACTERS = 20_000
_NO_CALL = 0
"""Of a call whose report nobody waits for; the callers' ids begin at 1."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Report:
    """How a call of the environment ended."""

    host: Host
    call_id: int
    value: Any
    error: str
    """The traceback; empty if the call returned."""
    stop_reason: StopReason = StopReason.ENVIRONMENT_ERROR
    """What that error means for the episode."""
    seconds: float = 0.0
    """How long the call took."""


TakeReports = Callable[[Sequence[Report]], None]
"""Takes what came of some calls; may be called from any thread."""


class Host(Protocol):
    """Runs the calls of one environment, one after the other, and reports each."""

    system_prompt: str | None
    """What the environment puts before the first observation; known once a call has returned."""
    episode_id: str
    """Whose calls these are; set before each call."""

    @property
    def died(self) -> bool:
        """Whether the environment's own process ended by itself."""
        ...

    def call(self, call_id: int, function: Callable[[AnyEnv], Any]) -> None:
        """Run `function(env)` and report; the first call makes the environment."""
        ...

    def waited_seconds(self) -> float:
        """Return for how long the last call waited, or has been waiting, for those of other environments."""
        ...

    def end_episode(self) -> None:
        """Let the environment give back what it holds for an episode only: the loop ended it."""
        ...

    def close(self) -> None:
        """Close the environment after the calls that are queued."""
        ...

    def abandon(self) -> bool:
        """Report nothing any more; close the environment as soon as no call of it is running.

        Returns:
            Whether one may be.
        """
        ...

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the end of what `close` began; return whether all has ended."""
        ...

    def where(self) -> str:
        """Return the stack of the call that is running, to show where an environment hangs."""
        ...


class BaseHost(Host):
    """What all hosts share: an environment that its first call makes, and whose errors become reports."""

    _caught: tuple[type[BaseException], ...] = (BaseException,)
    """The errors that are the environment's own. It is foreign code: even a SystemExit is."""

    def __init__(self, make: Callable[[], AnyEnv], report: TakeReports, *, name: str) -> None:
        """Remember how to make the environment.

        Args:
            make: Creates it.
            report: Takes the reports, from the thread that runs the calls.
            name: For people who look for what hangs, or read that it failed to close.
        """
        self._make, self._name = make, name
        self.report = report
        self._env: AnyEnv | None = None
        self.system_prompt: str | None = None
        self._holds = False
        """Whether the environment holds something for the time of an episode."""
        self.episode_id = ""
        self.register: CallRegister | None = None
        """Where this process notes the calls that it is in."""

    @property
    def died(self) -> bool:
        """Return False: there is no process of its own."""
        return False

    def _noted(self) -> AbstractContextManager[None]:
        """Note the episode while foreign code runs in this process."""
        return nullcontext() if self.register is None else self.register.during(self.episode_id)

    def _run(self, call_id: int, function: Callable[[AnyEnv], Any]) -> Report:
        """Call `function(env)` and return what came of it."""
        value, error, reason = None, "", StopReason.ENVIRONMENT_ERROR
        began = time.monotonic()
        try:
            with self._noted():
                if self._env is None:
                    self._env = self._make()
                    self.system_prompt = system_prompt_of(self._env)
                    self._holds = end_episode_of(self._env) is not None
                value = function(self._env)
        except self._caught as caught:
            error, reason = traceback_of(caught), stop_reason_of(caught)
        return Report(self, call_id, value, error, reason, time.monotonic() - began)

    def end_episode(self) -> None:
        """Let the environment give back what it holds for an episode only: the loop ended it."""
        if self._holds:
            self.call(_NO_CALL, _end_episode)

    def _close_environment(self) -> None:
        env, self._env = self._env, None
        if env is None:
            return
        try:
            with self._noted():
                env.close()
        except self._caught as caught:
            _log.warning("the environment %s failed to close:\n%s", self._name, traceback_of(caught))


class EnvironmentHost(BaseHost):
    """Runs the calls of one environment in a thread of its own, one after the other, and reports each."""

    def __init__(self, make: Callable[[], AnyEnv], report: TakeReports, *, name: str) -> None:
        """Start the thread; the environment is made by the first call."""
        super().__init__(make, report, name=name)
        self._calls: SimpleQueue[tuple[int, Callable[[AnyEnv], Any]] | None] = SimpleQueue()
        self._abandoned = False
        # A daemon: a hanging environment must not keep the program from ending.
        self._thread = threading.Thread(target=self._serve, name=f"environment {name}", daemon=True)
        self._thread.start()

    def call(self, call_id: int, function: Callable[[AnyEnv], Any]) -> None:
        """Run `function(env)` in the host's thread."""
        self._calls.put((call_id, function))

    def waited_seconds(self) -> float:
        """Return 0: the thread is this environment's alone."""
        return 0.0

    def close(self) -> None:
        """Close the environment after the calls that are queued, and end the thread."""
        self._calls.put(None)

    def abandon(self) -> bool:
        """Give up on a call that is running: nothing is reported any more; if it returns, all is closed."""
        self._abandoned = True
        self.close()
        return True

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the thread to end; return whether it has."""
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def where(self) -> str:
        """Return the stack of the call that is running, to show where an environment hangs."""
        return stack_of(self._thread)

    def _serve(self) -> None:
        while not self._abandoned and (item := self._calls.get()) is not None:
            report = self._run(*item)
            if not self._abandoned:
                self.report((report,))
        self._close_environment()


def stack_of(thread: threading.Thread) -> str:
    """Return the stack of the call that a host's thread is running; empty if it has ended."""
    frame = sys._current_frames().get(thread.ident or 0)
    lines = traceback.format_stack(frame) if frame is not None else []
    # What comes before the call is the thread's start and the host's own.
    own = max((number for number, line in enumerate(lines) if __file__ in line), default=-1)
    return cut("".join(lines[own + 1 :]))


def end_episode_of(env: AnyEnv) -> Callable[[], None] | None:
    """Return what gives back what an environment holds for an episode only, such as a place on a server."""
    return getattr(getattr(env, "unwrapped", env), "end_episode", None)


def _end_episode(env: AnyEnv) -> None:
    end_episode = end_episode_of(env)
    assert end_episode is not None
    end_episode()


def system_prompt_of(env: object) -> str | None:
    """Return the environment's own system prompt, `metadata["system_prompt"]`, or None.

    Raises:
        InvalidEnvironmentError: It is no text.
    """
    prompt = (getattr(env, "metadata", None) or {}).get("system_prompt")
    if prompt is not None and not isinstance(prompt, str):
        raise InvalidEnvironmentError(
            f"metadata['system_prompt'] must be a str, but it is {type(prompt).__name__}", field="environment"
        )
    if prompt is not None and not is_unicode(prompt):
        raise InvalidEnvironmentError(
            "metadata['system_prompt'] must be Unicode text without lone surrogates", field="environment"
        )
    return prompt


def stop_reason_of(error: BaseException) -> StopReason:
    """Return what an error that `reset` or `step` raised means for the episode."""
    if isinstance(error, ForwardedError):
        return error.stop_reason
    if isinstance(error, OpponentFailedError):
        return StopReason.OPPONENT_FAILED
    unknown = isinstance(error, InvalidRewardError)
    return StopReason.INVALID_REWARD if unknown else StopReason.ENVIRONMENT_ERROR


class ForwardedError(Exception):
    """An error of an environment in another process: its traceback is told, ours would hide it."""

    def __init__(self, text: str, stop_reason: StopReason = StopReason.ENVIRONMENT_ERROR) -> None:
        super().__init__(text, stop_reason)
        self.text, self.stop_reason = text, stop_reason


def traceback_of(error: BaseException) -> str:
    """Return an environment's traceback, without the frame that called it."""
    if isinstance(error, ForwardedError):
        return error.text
    # The first frame is ours, which tells the author of an environment nothing.
    frames = error.__traceback__.tb_next if error.__traceback__ is not None else None
    return cut("".join(traceback.format_exception(type(error), error, frames)))


def cut(text: str) -> str:
    """Return a text as a record takes it: its beginning and its end, and what is no Unicode written out."""
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= _MOST_ERROR_CHARACTERS:
        return text
    half = _MOST_ERROR_CHARACTERS // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
