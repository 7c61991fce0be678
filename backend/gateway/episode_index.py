"""Stored episodes in brief: each step's are read once and remembered, as recorded ones never change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from zlib import crc32

from pydantic_core import from_json, to_json

from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.schema.ids import EpisodeId
from tinkergym.schema.summaries import EpisodeRows
from tinkergym.trajectory.trajectory import has_return

_MOST_ROWS = 400_000
"""Of all runs together: 130 MB at 325 bytes each, as measured with numbers that all differ."""
_MOST_RUNS = 64


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """One seat of an episode."""

    index: int
    agent: str
    episode_return: float
    stop_reason: str
    turns: int
    sampled_tokens: int
    completed: bool
    trained: bool
    task: int | None = None
    tool_errors: int = 0
    opening: int = 0
    """Of the first observation: episodes of a seat with the same one had the same task. 0 without a turn."""


_COLUMNS = [name for name in EpisodeRow.__slots__ if name in EpisodeRows.model_fields]
_TOOL_ERRORS = ("tool_errors", "malformed_tool_calls", "refused_tool_calls")


class EpisodeIndex:
    """Steps that were asked for lately. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: BoundedDict[tuple[str, int], tuple[EpisodeRow, ...]] = BoundedDict(
            _MOST_ROWS, size=lambda rows: len(rows) + 1
        )
        self._steps: BoundedDict[str, list[int]] = BoundedDict(_MOST_RUNS)

    def steps(self, job_id: str, read: Callable[[], list[int]], *, is_over: bool) -> list[int]:
        """Return the steps with stored episodes: those of a job that is over do not change."""
        with self._lock:
            known = self._steps.get(job_id)
        if known is None:
            known = read()
            if is_over:
                with self._lock:
                    self._steps[job_id] = known
        return known

    def of_step(
        self, job_id: str, step: int, read: Callable[[], Iterable[bytes]], *, is_recorded: bool
    ) -> tuple[EpisodeRow, ...]:
        """Return the rows of a step in order of their episodes.

        Args:
            job_id: Of the job.
            step: The step.
            read: Returns the step's episodes as JSON.
            is_recorded: Whether no episode can be added any more.
        """
        key = job_id, step
        with self._lock:
            known = self._known.get(key)
        if known is not None:
            return known
        found = (row for body in read() for row in rows_of(body))
        rows = tuple(sorted(found, key=lambda row: (row.index, row.agent)))
        if is_recorded:
            with self._lock:
                self._known[key] = rows
        return rows


def rows_of(body: bytes) -> Iterator[EpisodeRow]:
    """Yield a row for each seat of a stored episode."""
    result = from_json(body)
    found = EpisodeId.find(result["episode_id"])
    # Not as an `EpisodeResult`: checking every token takes ten times as long.
    for one in result["trajectories"]:
        turns = one["turns"]
        yield EpisodeRow(
            index=-1 if found is None else found.index,
            agent=one["agent"],
            episode_return=sum(turn["reward"] for turn in turns) + one["early_reward"],
            stop_reason=one["stop_reason"],
            turns=len(turns),
            sampled_tokens=sum(turn["end"] - turn["start"] for turn in turns),
            completed=has_return(one["stop_reason"], has_turns=bool(turns)),
            trained=one["trained"],
            task=one.get("task_index"),
            tool_errors=int(
                sum(turn.get("metrics", {}).get(name, 0) for turn in turns for name in _TOOL_ERRORS)
            ),
            opening=crc32(to_json(turns[0]["observation"])) if turns else 0,
        )


def alike(rows: Sequence[EpisodeRow], begun: AbstractSet[tuple[str, int]] | None) -> Sequence[EpisodeRow]:
    """Return the rows of episodes of which a seat began so; all rows for None.

    In a game, what later seats see first depends on the moves before; one seat that began so is enough.
    """
    if begun is None:
        return rows
    found = {row.index for row in rows if (row.agent, row.opening) in begun}
    return [row for row in rows if row.index in found]


def says(body: bytes, text: str) -> bool:
    """Whether an observation, an action or an error of a stored episode has this text, in any case."""
    wanted = text.casefold()
    result = from_json(body)
    for one in result["trajectories"]:
        told = [one["error"], one["final_observation"]]
        told += [content for turn in one["turns"] for content in (turn["observation"], turn["action"])]
        if any(wanted in words.casefold() for content in told for words in _words(content)):
            return True
    return False


def _words(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            yield from (str(part[name]) for name in ("text", "name", "arguments") if name in part)


class RowPage:
    """Collects rows as columns."""

    def __init__(self) -> None:
        self.rows = EpisodeRows()

    def __len__(self) -> int:
        return len(self.rows.step)

    def add(self, step: int, row: EpisodeRow, environment: str) -> None:
        """Add a row."""
        to = self.rows
        to.step.append(step)
        to.environment.append(environment)
        for name in _COLUMNS:
            getattr(to, name).append(getattr(row, name))
