"""Hosts run the calls of one environment. EnvironmentHost does so in its own thread.

The thread creates, resets, steps and closes the environment, so thread-bound resources (SQLite connections,
browsers) work, calls never overlap, and a hanging environment costs only its own thread. See `executors` for
other places where environments can run.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

import gymnasium as gym

from tinkergym.errors import InvalidEnvironmentError, InvalidRewardError, OpponentFailedError
from tinkergym.messages import is_unicode
from tinkergym.rollout.call_register import CallRegister
from tinkergym.schema.chat_templates import variables_fault
from tinkergym.trajectory.trajectory import StopReason

AnyEnv = gym.Env[Any, Any]

_MOST_ERROR_CHARACTERS = 20_000
_NO_CALL = 0
"""Id of a call whose report is not needed; the callers' ids begin at 1."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a call of the environment."""

    host: Host
    call_id: int
    value: Any
    error: str
    """The traceback; empty if the call returned."""
    stop_reason: StopReason = StopReason.ENVIRONMENT_ERROR
    """What that error means for the episode."""
    seconds: float = 0.0
    """Duration of the call."""


TakeReports = Callable[[Sequence[Report]], None]
"""Receives the results of calls; may be called from any thread."""


class Host(Protocol):
    """Runs the calls of one environment, one after the other, and reports each."""

    system_prompt: str | None
    """The environment's system prompt; known once a call has returned."""
    episode_id: str
    """The episode of the calls; set before each call."""

    @property
    def died(self) -> bool:
        """Whether the environment's own process ended unexpectedly."""
        ...

    def call(self, call_id: int, function: Callable[[AnyEnv], Any]) -> None:
        """Run `function(env)` and report; the first call creates the environment."""
        ...

    def end_episode(self) -> None:
        """Let the environment release what it holds for one episode, because the loop ended the episode."""
        ...

    def close(self) -> None:
        """Close the environment after the queued calls."""
        ...

    def abandon(self) -> bool:
        """Stop reporting; close the environment as soon as no call of it is running.

        Returns:
            Whether one may be running.
        """
        ...

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the end of what `close` began; return whether everything has ended."""
        ...

    def where(self) -> str:
        """Return the stack of the running call, to show where an environment hangs."""
        ...


class BaseHost(Host):
    """Shared by all hosts: the first call creates the environment, and its errors become reports."""

    _caught: tuple[type[BaseException], ...] = (BaseException,)
    """Errors of the environment. It is foreign code, so even a SystemExit counts."""

    def __init__(self, make: Callable[[], AnyEnv], report: TakeReports, *, name: str) -> None:
        """Store how to create the environment.

        Args:
            make: Creates it.
            report: Receives the reports, from the thread that runs the calls.
            name: A name for messages about hanging or failing environments.
        """
        self._make, self._name = make, name
        self.report = report
        self._env: AnyEnv | None = None
        self.system_prompt: str | None = None
        self._holds = False
        """Whether the environment holds something for the duration of an episode."""
        self.episode_id = ""
        self.register: CallRegister | None = None
        """Where this process records its running calls."""

    @property
    def died(self) -> bool:
        """Return False: there is no separate process."""
        return False

    def _noted(self) -> AbstractContextManager[None]:
        """Record the episode while foreign code runs in this process."""
        return nullcontext() if self.register is None else self.register.during(self.episode_id)

    def _run(self, call_id: int, function: Callable[[AnyEnv], Any]) -> Report:
        """Call `function(env)` and return its result."""
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
        """Let the environment release what it holds for one episode, because the loop ended the episode."""
        if self._holds:
            self.call(_NO_CALL, end_episode)

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
    """Runs the calls of one environment in its own thread, one after the other, and reports each."""

    def __init__(self, make: Callable[[], AnyEnv], report: TakeReports, *, name: str) -> None:
        """Start the thread; the first call creates the environment."""
        super().__init__(make, report, name=name)
        self._calls: SimpleQueue[tuple[int, Callable[[AnyEnv], Any]] | None] = SimpleQueue()
        self._abandoned = False
        # A daemon: a hanging environment must not keep the program from ending.
        self._thread = threading.Thread(target=self._serve, name=f"environment {name}", daemon=True)
        self._thread.start()

    def call(self, call_id: int, function: Callable[[AnyEnv], Any]) -> None:
        """Run `function(env)` in the host's thread."""
        self._calls.put((call_id, function))

    def close(self) -> None:
        """Close the environment after the queued calls, and end the thread."""
        self._calls.put(None)

    def abandon(self) -> bool:
        """Give up on a running call: nothing is reported any more; if it returns, everything is closed."""
        self._abandoned = True
        self.close()
        return True

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the thread to end; return whether it has."""
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def where(self) -> str:
        """Return the stack of the running call, to show where an environment hangs."""
        return stack_of(self._thread)

    def _serve(self) -> None:
        while not self._abandoned and (item := self._calls.get()) is not None:
            report = self._run(*item)
            if not self._abandoned:
                self.report((report,))
        self._close_environment()


def stack_of(thread: threading.Thread) -> str:
    """Return the stack of the running call of a host's thread; empty if it has ended."""
    frame = sys._current_frames().get(thread.ident or 0)
    lines = traceback.format_stack(frame) if frame is not None else []
    # The frames before the call are the thread's start and the host's own.
    own = max((number for number, line in enumerate(lines) if __file__ in line), default=-1)
    return cut("".join(lines[own + 1 :]))


def end_episode_of(env: AnyEnv) -> Callable[[], None] | None:
    """Return a function that releases an environment's per-episode resources, such as a place on a server."""
    return getattr(getattr(env, "unwrapped", env), "end_episode", None)


def end_episode(env: AnyEnv) -> None:
    """Release an environment's per-episode resources; it has some."""
    release = end_episode_of(env)
    assert release is not None
    release()


def template_variables_of(env: object) -> dict[str, Any]:
    """Return the template variables that an environment's class sets for all of its tasks."""
    given = getattr(type(getattr(env, "unwrapped", env)), "template_variables", None)
    return dict(given) if isinstance(given, Mapping) and not variables_fault(given) else {}


def system_prompt_of(env: object) -> str | None:
    """Return the environment's own system prompt, `metadata["system_prompt"]`, or None.

    Raises:
        InvalidEnvironmentError: It is not text.
    """
    prompt = (getattr(env, "metadata", None) or {}).get("system_prompt")
    if prompt is not None and not isinstance(prompt, str):
        raise InvalidEnvironmentError(
            f"metadata['system_prompt'] must be a str, not {type(prompt).__name__}", field="environment"
        )
    if prompt is not None and not is_unicode(prompt):
        raise InvalidEnvironmentError(
            "metadata['system_prompt'] must be Unicode text without lone surrogates", field="environment"
        )
    return prompt


def stop_reason_of(error: BaseException) -> StopReason:
    """Return what an error raised by `reset` or `step` means for the episode."""
    if isinstance(error, ForwardedError):
        return error.stop_reason
    if isinstance(error, OpponentFailedError):
        return StopReason.OPPONENT_FAILED
    unknown = isinstance(error, InvalidRewardError)
    return StopReason.INVALID_REWARD if unknown else StopReason.ENVIRONMENT_ERROR


_WAYS_OUT = {
    "signal only works in main thread": "(environments run in threads here; with executor='process' each has "
    "a main thread of its own)",
}
"""What to do about errors that come from where an environment runs, by their words."""


class ForwardedError(Exception):
    """An error of an environment in another process. Its traceback is shown instead of ours."""

    def __init__(self, text: str, stop_reason: StopReason = StopReason.ENVIRONMENT_ERROR) -> None:
        super().__init__(text, stop_reason)
        self.text, self.stop_reason = text, stop_reason


def traceback_of(error: BaseException) -> str:
    """Return an environment's traceback, without the frame that called it."""
    if isinstance(error, ForwardedError):
        return error.text
    # The first frame is ours, which does not help the author of an environment.
    frames = error.__traceback__.tb_next if error.__traceback__ is not None else None
    text = "".join(traceback.format_exception(type(error), error, frames))
    return cut(text + next((hint for words, hint in _WAYS_OUT.items() if words in text), ""))


def cut(text: str) -> str:
    """Shorten a text to its beginning and end, with invalid Unicode escaped."""
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= _MOST_ERROR_CHARACTERS:
        return text
    half = _MOST_ERROR_CHARACTERS // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
