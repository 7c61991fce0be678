"""Episodes in a file: JSON lines from which a run can be continued, compared and read.

The first line may hold the run's settings; every other line is one episode. An incomplete last line, left by
a killed process, is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from pydantic import ValidationError

from tinkergym.basics.written_files import lock_file
from tinkergym.errors import ConflictError, InvalidRequestError
from tinkergym.trajectory.bounded_numbers import Record
from tinkergym.trajectory.trajectory import Trajectory

_SETTINGS = "settings"


class EpisodeRecord(Record):
    """One stored episode."""

    episode_id: str
    environment: str
    seed: int
    sample: int = 0
    """Its number among the episodes of the same seed."""
    trajectory: Trajectory

    @property
    def key(self) -> tuple[int, int]:
        """Which episode of the run it is: (seed, sample)."""
        return self.seed, self.sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The contents of a file."""

    path: Path
    settings: dict[str, Any]
    """Settings of the run that wrote it; empty if the file has none."""
    episodes: list[EpisodeRecord]
    complete_bytes: int
    """Length of the complete lines, in bytes."""


def read_records(path: Path) -> Records:
    """Read a file of episodes.

    Raises:
        InvalidRequestError: There is no such file, or a line is not an episode.
    """
    if not path.is_file():
        raise InvalidRequestError(f"{path} does not exist", hint="`tinkergym eval --out` writes one")
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
                    f"line {number} of {path} is not an episode: {_why(error)}",
                    hint="use a file written by `tinkergym eval --out`",
                ) from error
    return Records(path=path, settings=settings, episodes=episodes, complete_bytes=complete)


def _why(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return "it is not a JSON object"
    first = error.errors(include_url=False)[0]
    name = ".".join(map(str, first["loc"]))
    if not name:
        return "it is not a JSON object"
    return f"it has no {name}" if first["type"] == "missing" else f"{name}: {first['msg']}"


class RecordWriter:
    """Appends episodes to a file. An existing file is continued.

    Example:
        >>> with RecordWriter(Path("run.jsonl"), {"seed": 0}) as writer:
        ...     if (seed, sample) not in writer.done:
        ...         writer.write(record)
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Open the file and read its contents.

        Raises:
            InvalidRequestError: The file is not a file of episodes.
            ConflictError: It belongs to a run with other settings, or another process is writing to it.
        """
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = path.open("ab")
        try:
            lock_file(self._file, path)
            self.episodes = self._continued(dict(settings))
        except BaseException:
            self._file.close()
            raise

    @property
    def done(self) -> set[tuple[int, int]]:
        """The episodes already in the file, by (seed, sample)."""
        return {record.key for record in self.episodes}

    def write(self, record: EpisodeRecord) -> None:
        """Add an episode. Once this returns, it survives a killed process."""
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
                f"{self.path} belongs to a run with other settings: {what}",
                hint="repeat those settings to continue it, or choose another file",
                field="--out",
            )
        self._file.truncate(there.complete_bytes)
        return there.episodes
