"""ProcessEnv: an environment in a process of its own, which can be killed.

Frames go through a pipe and are put together in the child, so the server's process spends nothing on them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import gymnasium as gym

from tinkergym.errors import EnvironmentGoneError, InvalidEnvironmentError, TinkerGymError
from tinkergym.serving.protocol import Frame, Message, encode, error_message

_CLOSE_SECONDS = 5.0


class ProcessEnv(gym.Env[Any, Any]):
    """Stands for an environment in a child process; asked with `exchange`, not with `reset` and `step`."""

    def __init__(
        self, environment_id: str, kwargs: Mapping[str, Any], most_bytes: int, *, entry_point: str = ""
    ) -> None:
        """Start the process; the environment is made by the first exchange.

        Args:
            environment_id: As registered.
            kwargs: For its constructor.
            most_bytes: Longest answer.
            entry_point: To register under that id first, if nothing else does.
        """
        # Spawned: a fork would copy the server's threads' locks in whatever state they are.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_live, args=(theirs, environment_id, dict(kwargs), most_bytes, entry_point), daemon=True
        )
        self._process.start()
        theirs.close()

    def exchange(self, message: Message) -> Any:
        """Have the child do what a message says and return its answer: a frame, or a description.

        Raises:
            InvalidEnvironmentError: The environment could not be made.
            EnvironmentGoneError: The process has ended.
        """
        try:
            self._pipe.send(message)
            kind, answer = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(_CLOSE_SECONDS)
            raise EnvironmentGoneError(
                f"the environment's process ended ({_how(self._process.exitcode)})",
                hint="its last words are in the server's output; reset begins another",
            ) from None
        if kind == "failed":
            raise InvalidEnvironmentError(answer, field="environment")
        return answer

    def play(self, message: Message) -> Frame:
        """Have the child do what a message asks of the environment and return the frame of the answer."""
        try:
            frame: Frame = self.exchange(message)
        except TinkerGymError as error:
            return encode(error_message(error, index=message["i"]))
        return frame

    def close(self) -> None:
        """Close the environment and end its process."""
        with suppress(OSError):
            self._pipe.send(None)
        self._process.join(_CLOSE_SECONDS)
        self.kill()
        self._pipe.close()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()


def _how(code: int | None) -> str:
    if code is None:
        return "and left no exit code"
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def _live(
    pipe: Connection, environment_id: str, kwargs: Mapping[str, Any], most_bytes: int, entry_point: str
) -> None:
    """Be the child."""
    # Ctrl-C reaches the whole group; the server then closes its environments in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, name="parent's end", daemon=True).start()
    # Imported here: this file is imported by the server, which may have nothing to play itself.
    from tinkergym.registration.environments import register
    from tinkergym.serving.playing import describe, play
    from tinkergym.serving.served_game import make_served

    env: gym.Env[Any, Any] | None = None
    with suppress(EOFError, OSError):
        while (message := pipe.recv()) is not None:
            try:
                if env is None:
                    if entry_point:
                        register(environment_id, entry_point)
                    env = make_served(environment_id, kwargs)
                answer: Frame | Message
                answer = describe(env) if message["op"] == "about" else play(env, message, most_bytes)
                pipe.send(("done", answer))
            except BaseException:  # foreign code, at the edge of its process
                pipe.send(("failed", traceback.format_exc()))
        if env is not None:
            env.close()


def _die_with_parent() -> None:
    """End, whatever the environment is doing, when the server has ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
