"""An environment in its own process.

A host thread waits for the process as it would for an environment in this process. This module starts the
process, reports where it hangs, and makes sure that it ends. Values are sent as pickles, between a program
and the child that it started from its own code.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from tinkergym.errors import InvalidEnvironmentError
from tinkergym.rollout.environment_host import (
    AnyEnv,
    EnvironmentHost,
    ForwardedError,
    TakeReports,
    cut,
    end_episode,
    end_episode_of,
    stop_reason_of,
    traceback_of,
)
from tinkergym.rollout.scoring import scores_of
from tinkergym.rubrics.group import score_group_of
from tinkergym.trajectory.trajectory import StopReason

if sys.platform == "linux":
    import fcntl

_WHERE_SECONDS = 0.5
"""The process answers at once, unless its code holds Python's lock."""
_CLOSE_SECONDS = 5.0
_KILL_SECONDS = 5.0
_NICENESS = 14
"""Niceness of environment processes relative to the player: the kernel's 0 to 19."""

# Sent to the parent: the value, the traceback ("" if there is none), and what that means.
_Answer = tuple[Any, str, StopReason]


class ProcessHost(EnvironmentHost):
    """Runs the calls of one environment in its own process, one after the other, and reports each."""

    def __init__(self, make: Callable[[], AnyEnv], report: TakeReports, *, name: str) -> None:
        """Prepare; the first call starts the process."""
        self._process = EnvironmentProcess(make)
        super().__init__(self._process.start, report, name=name)

    def _noted(self) -> AbstractContextManager[None]:
        # The environment's code runs elsewhere, so it cannot have ended this process.
        return nullcontext()

    @property
    def died(self) -> bool:
        """Return whether the process ended unexpectedly during a call."""
        return self._process.died

    def abandon(self) -> bool:
        """Kill the process."""
        super().abandon()
        self._process.kill()
        return True

    def where(self) -> str:
        """Return the stack of the running call, unless the process does not respond."""
        return self._process.where()


class EnvironmentProcess:
    """The remote environment, with the methods of `gymnasium.Env` that an episode needs."""

    def __init__(self, make: Callable[[], AnyEnv]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._process: multiprocessing.process.BaseProcess | None = None
        self._killed = False
        self.died = False
        """Whether the process ended unexpectedly during a call."""
        self._calls: Connection
        self._control: Connection
        self.metadata: dict[str, Any] = {}

    def start(self) -> Any:
        """Start the process, create the environment there, and return its proxy: this object."""
        try:
            pickle.dumps(self._make)
        except Exception as error:  # Pickling a user's class may raise anything.
            raise InvalidEnvironmentError(
                f"the environment's constructor cannot be sent to a process: {error}",
                hint="use its id, or define the class at the top level of a module",
                field="environment",
            ) from error
        # Not a fork: other threads of this program hold locks that a child could never acquire.
        context = multiprocessing.get_context("spawn")
        self._calls, calls = context.Pipe()
        self._control, control = context.Pipe()
        process = context.Process(target=_serve, args=(self._make, calls, control), daemon=True)
        # With the lock, so that a kill at this moment either prevents the start or finds the process.
        with self._lock:
            if self._killed:
                raise ForwardedError("the process is no longer needed")
            process.start()
            self._process = process
        # The child's ends: while they are open here, too, its death would not end a read.
        calls.close()
        control.close()
        try:
            prompt, holds, pays_groups = self._ask("make", (), {})
        except BaseException:
            self._end()  # The caller may try again.
            raise
        self.metadata = {} if prompt is None else {"system_prompt": prompt}
        if holds:
            self.end_episode = partial(self._ask, "end_episode", (), {})
        if pays_groups:
            self.score_group = partial(self.apply, scores_of)
        return self

    def reset(self, **arguments: Any) -> Any:
        """Reset the environment there."""
        return self._ask("reset", (), arguments)

    def step(self, action: Any) -> Any:
        """Step the environment there."""
        return self._ask("step", (action,), {})

    def apply(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call `function(env, *arguments)` in the process and return its result."""
        return self._ask(function, arguments, {})

    def close(self) -> None:
        """Let the environment close and its process end; kill it if it does not."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(OSError):  # It is already dead.
            self._calls.send_bytes(b"")
        process.join(_CLOSE_SECONDS)
        self.kill()
        self._calls.close()
        self._control.close()

    def kill(self) -> None:
        """End the process immediately."""
        with self._lock:
            self._killed = True
        self._end()

    def _end(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process.join(_KILL_SECONDS)

    def where(self) -> str:
        """Return the stack of the running call; empty if the process cannot report it."""
        try:
            self._control.send_bytes(b"where")
            if self._control.poll(_WHERE_SECONDS):
                return self._control.recv_bytes().decode()
        except (AttributeError, OSError, EOFError):
            pass  # Not started yet, or dead.
        return ""

    def _ask(
        self, call: str | Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        try:
            self._calls.send_bytes(pickle.dumps((call, arguments, keywords)))
            answer = self._calls.recv_bytes()
        except (OSError, EOFError):
            self.died = not self._killed
            during = f" during {call}" if isinstance(call, str) else ""
            raise ForwardedError(f"the environment's process ended {self._ending()}{during}") from None
        value, error, stop_reason = pickle.loads(answer)
        if error:
            raise ForwardedError(error, stop_reason)
        return value

    def _ending(self) -> str:
        assert self._process is not None
        self._process.join(_KILL_SECONDS)
        code = self._process.exitcode
        if code is not None and code < 0:
            return f"by signal {signal.Signals(-code).name}"
        return f"with exit status {code}"


# --- in the child ---


def _serve(make: Callable[[], AnyEnv], calls: Connection, control: Connection) -> None:
    """Create the environment and handle calls until the parent closes it or is gone."""
    # Ctrl-C is for the parent, which ends its children itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "nice"):
        # Many start at once, and some compute without end; the process that samples and trains has priority.
        os.nice(_NICENESS)
    _die_with_parent()
    watcher = threading.Thread(target=_watch, args=(control, threading.get_ident()), daemon=True)
    watcher.start()
    env: AnyEnv | None = None
    while True:
        try:
            message = calls.recv_bytes()
        except (EOFError, OSError):
            message = b""
        if not message:
            break
        value, error, reason = None, "", StopReason.ENVIRONMENT_ERROR
        try:
            call, arguments, keywords = pickle.loads(message)
            if env is None:
                env = make()
                prompt = (getattr(env, "metadata", None) or {}).get("system_prompt")
                value = prompt, end_episode_of(env) is not None, score_group_of(env) is not None
            elif call == "end_episode":
                end_episode(env)
            elif isinstance(call, str):
                value = getattr(env, call)(*arguments, **keywords)
            else:
                value = call(env, *arguments)
        # Foreign code: even a SystemExit of its own is its failure, and the next episode may go well.
        except BaseException as caught:
            error, reason = traceback_of(caught), stop_reason_of(caught)
        calls.send_bytes(_pickled((value, error, reason)))
    if env is not None:
        env.close()


def _die_with_parent() -> None:
    """Let the kernel kill this process when the parent's end of a pipe closes.

    A watching thread would never run next to an environment that blocks the interpreter. Linux only; not its
    parent-death signal, which is sent when the thread that started us ends.
    """
    parent = multiprocessing.parent_process()
    if sys.platform == "linux" and parent is not None:
        pipe = int(parent.sentinel)
        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
        if multiprocessing.connection.wait([pipe], 0):  # It has already died.
            os._exit(1)


def _pickled(answer: _Answer) -> bytes:
    try:
        return pickle.dumps(answer)
    except Exception as error:
        text = f"what the environment returned cannot be sent between processes: {error}"
        return pickle.dumps((None, text, StopReason.ENVIRONMENT_ERROR))


def _watch(control: Connection, thread_id: int) -> None:
    """Report where the environment is when asked, and end the process when the parent is gone."""
    while True:
        try:
            control.recv_bytes()
            frame = sys._current_frames().get(thread_id)
            # The first frames are the interpreter's start and `_serve`.
            lines = traceback.format_stack(frame) if frame is not None else []
            own = next((i for i, line in enumerate(lines) if "in _serve" in line), -1)
            control.send_bytes(cut("".join(lines[own + 1 :])).encode())
        except (EOFError, OSError):
            os._exit(1)
