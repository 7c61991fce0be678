"""RecordTranscript: the text of each episode, as JSON lines."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import sys
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs

from tinkergym.errors import (
    EnvironmentInfrastructureError,
    InvalidRequestError,
    StorageFullError,
    TinkerGymError,
)
from tinkergym.user_code.quoting import quoted

if sys.platform != "win32":
    import fcntl

# EFBIG: the file has reached the size limit of the process.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class RecordTranscript(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Append each episode to a file, one JSON object per line, when it ends.

    Several processes may write to one file: an episode is written atomically, under a lock.

    An object has `episode_id`, `environment`, `seed`, `options`, `observation` (the first), `steps` (each
    with `action`, `observation`, `reward`, `terminated`, `truncated`, `metrics`), `return` and `ended`:
    `terminated`, `truncated`, or `abandoned` for an episode that was reset or closed before its end.

    Example:
        >>> env = RecordTranscript(tg.make("board/TicTacToeVs-v0"), "games.jsonl")
    """

    def __init__(self, env: gym.Env[Any, Any], path: str | os.PathLike[str], *, strict: bool = False) -> None:
        """Check that the file can be written.

        Args:
            env: The environment.
            path: The file; created if missing, else appended to.
            strict: Raise from `step` if an episode cannot be written. Otherwise there is one warning, `lost`
                counts the missing episodes, and play continues.

        Raises:
            InvalidRequestError: The file cannot be opened for writing.
        """
        RecordConstructorArgs.__init__(self, path=os.fspath(path), strict=strict)
        super().__init__(env)
        self._path = Path(path)
        self._strict = strict
        self._episode: dict[str, Any] | None = None
        self.lost = 0
        """Number of episodes that could not be written."""
        try:
            self._path.open("ab").close()
        except OSError as error:
            raise InvalidRequestError(
                f"{self._path} cannot be written: {error.strerror}",
                hint="use a file in an existing folder",
                field="path",
            ) from error

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        self._write("abandoned")
        observation, info = self.env.reset(seed=seed, options=options)
        self._episode = {
            "episode_id": str(uuid.uuid4()),
            "environment": self.env.spec.id if self.env.spec else type(self.env.unwrapped).__name__,
            "seed": seed,
            "options": options,
            "observation": observation,
            "steps": [],
        }
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step; the last one of an episode writes it.

        Raises:
            StorageFullError: With `strict`, the disk is full.
            EnvironmentInfrastructureError: With `strict`, the file cannot be written for another reason.
        """
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._episode is not None:
            self._episode["steps"].append(
                {
                    "action": action,
                    "observation": observation,
                    "reward": float(reward) if math.isfinite(reward) else None,  # JSON has no NaN.
                    "terminated": bool(terminated),
                    "truncated": bool(truncated),
                    "metrics": dict(info.get("metrics", {})),
                }
            )
        if terminated or truncated:
            self._write("terminated" if terminated else "truncated")
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Write an unfinished episode and close the environment."""
        try:
            self._write("abandoned")
        finally:
            super().close()

    def _write(self, ended: str) -> None:
        episode, self._episode = self._episode, None
        if episode is None:
            return
        rewards = [step["reward"] for step in episode["steps"]]
        episode["return"] = None if None in rewards else sum(rewards)
        episode["ended"] = ended
        line = json.dumps(episode, default=_as_json, ensure_ascii=True)
        try:
            append_line(self._path, line)
        except TinkerGymError as error:
            self.lost += 1
            if self._strict:
                raise
            if self.lost == 1:
                warnings.warn(f"{error}; the episode was not recorded, play continues", stacklevel=3)


def append_line(path: Path, line: str) -> None:
    """Append a line to a file to which other processes may be appending.

    Raises:
        StorageFullError: The disk is full; the file is unchanged.
        EnvironmentInfrastructureError: The file cannot be written for another reason.
    """
    try:
        # Unbuffered: the rest of a buffer would be written later, outside the lock.
        with path.open("a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = file.seek(0, os.SEEK_END)
            data = line.encode() + b"\n"
            # A killed writer may have left a partial line; ours must not be appended to it.
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                data = b"\n" + data
            try:
                while data:
                    data = data[file.write(data) or 0 :]
            except OSError:
                with contextlib.suppress(OSError):  # A device, such as /dev/full, has no size to restore.
                    file.truncate(size)
                raise
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFullError(
                f"no space is left for {path}", hint="free some, or name a file elsewhere"
            ) from error
        raise EnvironmentInfrastructureError(f"{path} cannot be written: {error}") from error


def read_transcripts(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the episodes of a file. A partial line, left by a killed process, is skipped."""
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                episode = json.loads(line)
            except ValueError:
                continue
            if isinstance(episode, dict):
                yield episode


def _as_json(value: Any) -> Any:
    tolist = getattr(value, "tolist", None)
    return tolist() if callable(tolist) else quoted(value)
