"""How many tasks of an evaluation are also tasks of training, by their content."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium as gym

from tinkergym.tasks.fingerprint import row_hash
from tinkergym.tasks.grid import sources_of, tasks_of
from tinkergym.tasks.source import TaskSource

MOST_COMPARED = 200_000
"""The most tasks that are read for this, of evaluation and training each."""


class Overlap(NamedTuple):
    """The tasks of an evaluation."""

    tasks: int
    trained_on: int | None
    """How many of them are also tasks of training; None if that is not known."""
    sha256: str
    """The fingerprint of the tasks; empty if they could not be hashed in time."""


def overlap_of(
    env: gym.Env[Any, Any], trained: Sequence[gym.Env[Any, Any]], *, seconds: float = 10.0
) -> Overlap | None:
    """Compare the tasks of an evaluation with those of training.

    Args:
        env: The environment of the evaluation.
        trained: Those that are trained in.
        seconds: How long to read the tasks at most.

    Returns:
        None if the environment has no tasks, or draws from several sources.
    """
    source = tasks_of(env)
    if source is None:
        return None
    found: list[Overlap] = []
    sources = [one for environment in trained for one in sources_of(environment)]
    # A daemon: data that takes longer must not keep the process from ending.
    thread = threading.Thread(target=lambda: found.append(_compared(source, sources)), daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else Overlap(len(source), None, "")


def _compared(source: TaskSource, trained: Sequence[TaskSource]) -> Overlap:
    count = len(source)
    # A source may be foreign code, and rows need no hash to be played.
    try:
        if count > MOST_COMPARED:
            return Overlap(count, None, "")
        sha256 = source.fingerprint
        if not trained:
            return Overlap(count, None, sha256)
        if sum(map(len, trained)) > MOST_COMPARED:
            return Overlap(count, None, sha256)
        if any(one.fingerprint == sha256 for one in trained):
            return Overlap(count, count, sha256)
        known = {row_hash(task) for one in trained for task in one}
        return Overlap(count, sum(row_hash(task) in known for task in source), sha256)
    except Exception:
        return Overlap(count, None, "")
