"""Episodes in a file: JSON lines that a run can be continued from, compared with, and read again.

The first line may hold the run's settings, every other line is one episode. A line that a killed process left
unfinished at the end is no episode; all before it are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from pydantic import ValidationError

from tinkergym.errors import ConflictError, InvalidRequestError
from tinkergym.trajectory.record import Record
from tinkergym.trajectory.trajectory import Trajectory

_SETTINGS = "settings"


class EpisodeRecord(Record):
    """One saved episode."""

    episode_id: str
    environment: str
    seed: int
    sample: int = 0
    """Which of several episodes of the same seed."""
    trajectory: Trajectory

    @property
    def key(self) -> tuple[int, int]:
        """Which episode of the run it is: (seed, sample)."""
        return self.seed, self.sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """What a file holds."""

    path: Path
    settings: dict[str, Any]
    """Of the run that wrote it; empty if it says nothing."""
    episodes: list[EpisodeRecord]
    complete_bytes: int
    """How much of the file is complete lines."""


def read_records(path: Path) -> Records:
    """Read a file of episodes.

    Raises:
        InvalidRequestError: There is no such file, or a line in it is no episode.
    """
    if not path.is_file():
        raise InvalidRequestError(f"there is no file {path}", hint="`tinkergym eval --out` writes one")
    settings: dict[str, Any] = {}
    episodes: list[EpisodeRecord] = []
    complete = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                break
            complete += len(line)
            try:
                content = json.loads(line)
                if number == 1 and set(content) == {_SETTINGS}:
                    settings = dict(content[_SETTINGS])
                else:
                    episodes.append(EpisodeRecord.model_validate(content))
            except (ValueError, ValidationError, TypeError) as error:
                raise InvalidRequestError(
                    f"line {number} of {path} is no episode: {_why(error)}",
                    hint="give a file that `tinkergym eval --out` wrote",
                ) from error
    return Records(path=path, settings=settings, episodes=episodes, complete_bytes=complete)


def _why(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return "it is no JSON object"
    first = error.errors(include_url=False)[0]
    name = ".".join(map(str, first["loc"]))
    if not name:
        return "it is no JSON object"
    return f"it has no {name}" if first["type"] == "missing" else f"{name}: {first['msg']}"


class RecordWriter:
    """Appends episodes to a file; a file that is there already is continued.

    Example:
        >>> with RecordWriter(Path("run.jsonl"), {"seed": 0}) as writer:
        ...     if (seed, sample) not in writer.done:
        ...         writer.write(record)
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Open the file and read what is there.

        Raises:
            InvalidRequestError: The file holds something else.
            ConflictError: It is of a run with other settings, or another process is writing it.
        """
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = path.open("ab")
        try:
            _lock(self._file, path)
            self.episodes = self._continued(dict(settings))
        except BaseException:
            self._file.close()
            raise

    @property
    def done(self) -> set[tuple[int, int]]:
        """The episodes that the file holds already, by (seed, sample)."""
        return {record.key for record in self.episodes}

    def write(self, record: EpisodeRecord) -> None:
        """Add an episode; once this returns, a killed process does not lose it."""
        self._file.write(record.model_dump_json().encode() + b"\n")
        self._file.flush()
        self.episodes.append(record)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _continued(self, settings: dict[str, Any]) -> list[EpisodeRecord]:
        there = read_records(self.path)
        if there.complete_bytes == 0:
            self._file.truncate(0)
            self._file.write(json.dumps({_SETTINGS: settings}).encode() + b"\n")
            self._file.flush()
            return []
        if there.settings != settings:
            changed = sorted(
                key for key in {*there.settings, *settings} if there.settings.get(key) != settings.get(key)
            )
            what = ", ".join(f"{key} was {there.settings.get(key)!r}" for key in changed)
            raise ConflictError(
                f"{self.path} is of a run with other settings: {what}",
                hint="repeat those settings to continue it, or choose another file",
                field="--out",
            )
        self._file.truncate(there.complete_bytes)
        return there.episodes


def _lock(file: IO[bytes], path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # not on Windows, where opening for writing twice fails by itself
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ConflictError(
            f"another process is writing {path}", hint="wait for it, or choose another file"
        ) from error
