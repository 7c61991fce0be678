"""CommandProgram: a command in any language as an agent program, started once per episode."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from typing import IO, Any

from tinkergym.errors import EnvironmentTimeoutError, InvalidEnvironmentError, InvalidRewardError
from tinkergym.recording.agent_program import ProgramSession
from tinkergym.user_code.quoting import quoted

_SHOWN_CHARACTERS = 2000
"""How much of a failed program's errors is shown."""
_READ_BYTES = 1 << 16
"""How much of the end of what it printed is read."""


class CommandProgram:
    """Starts a command per session, with the variables of `ProgramSession.environment`.

    Its reward is the last line that it prints: a number, an object with one per role, or `null` to drop the
    episode. A reward that it posts to `TINKERGYM_REWARD_URL` counts instead.
    """

    def __init__(self, command: Sequence[str]) -> None:
        """Set the command.

        Raises:
            InvalidRequestError: It is empty.
        """
        self._command = list(command)
        self.__name__ = os.path.basename(self._command[-1])  # noqa: PTH119 - a name, and not a path of ours

    def __call__(self, session: ProgramSession) -> Any:
        """Run the command and return its reward.

        Raises:
            InvalidEnvironmentError: It cannot be started, or failed.
            EnvironmentTimeoutError: It did not end in time, and was killed.
            InvalidRewardError: Its last line is not a reward.
        """
        # Files, because a pipe stays open as long as anything that the program has started.
        with TemporaryFile() as output, TemporaryFile() as errors:
            code = self._run(session, output, errors)
            printed, complaints = _end_of(output), _end_of(errors)
        if code:
            shown = complaints.strip()[-_SHOWN_CHARACTERS:]
            raise InvalidEnvironmentError(
                f"the program ended with the exit code {code}" + (f":\n{shown}" if shown else "")
            )
        return None if session.has_posted() else _reward_in(printed)

    def _run(self, session: ProgramSession, output: IO[bytes], errors: IO[bytes]) -> int:
        try:
            running = subprocess.Popen(
                self._command,
                env={**os.environ, **session.environment()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as error:
            raise InvalidEnvironmentError(
                f"{self._command[0]!r} cannot be started: {error.strerror}"
            ) from None
        try:
            return running.wait(timeout=session.timeout_seconds)
        except subprocess.TimeoutExpired:
            raise EnvironmentTimeoutError(
                f"the program did not end within {session.timeout_seconds:g} s"
            ) from None
        finally:
            # With everything that it has started.
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()


def _end_of(file: IO[bytes]) -> str:
    length = file.seek(0, os.SEEK_END)
    file.seek(max(0, length - _READ_BYTES))
    return file.read().decode("utf-8", "replace")


def _reward_in(printed: str) -> Any:
    lines = printed.strip().splitlines()
    last = lines[-1].strip() if lines else ""
    try:
        reward = json.loads(last)
    except ValueError:
        reward = last
    if reward is None or isinstance(reward, int | float | dict):
        return reward
    raise InvalidRewardError(
        f"the program printed no reward: its last line is {quoted(last)}"
        if last
        else "the program printed no reward: it printed nothing"
    )
