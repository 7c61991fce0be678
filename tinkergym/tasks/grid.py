"""The grid: every environment is single-turn or multi-turn, and data-free or data-dependent.

An environment says so in its metadata; `tinkergym.testing.EnvContract` plays it and finds out whether it is
true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import gymnasium as gym

from tinkergym.errors import InvalidEnvironmentError
from tinkergym.tasks.source import TaskSource

Turns = Literal["single", "multi"]
Data = Literal["free", "dependent"]


@dataclass(frozen=True, slots=True)
class GridCell:
    """Where an environment stands.

    Attributes:
        turns: `single`: one answer ends the episode; `multi`: act until the end.
        data: `free`: the seed makes the task; `dependent`: the task comes from data, and
            `reset(options={"task_index": i})` chooses it.
    """

    turns: Turns
    data: Data

    def __str__(self) -> str:
        return f"{self.turns}-turn, data-{self.data}"


def cell_of(env: gym.Env[Any, Any]) -> GridCell:
    """Return the cell that an environment declares, wrapped or not.

    Raises:
        InvalidEnvironmentError: Its metadata names none, or one that does not exist.
    """
    metadata = env.metadata or {}
    for key, known in (("turns", get_args(Turns)), ("data", get_args(Data))):
        value = metadata.get(key)
        if value not in known:
            says = f"says {value!r}" if value is not None else "does not say"
            raise InvalidEnvironmentError(
                f"{type(env.unwrapped).__name__} {says} in metadata[{key!r}] where it stands in the grid",
                hint=f"metadata = {{..., {key!r}: {' or '.join(map(repr, known))}}}",
                field=f"metadata.{key}",
            )
    return GridCell(turns=metadata["turns"], data=metadata["data"])


def declares_cell(env: gym.Env[Any, Any]) -> bool:
    """Return whether the environment says anything about its cell; Gymnasium's own say nothing."""
    return not {"turns", "data"}.isdisjoint(env.metadata or {})


def with_tasks(metadata: Mapping[str, Any], tasks: TaskSource) -> dict[str, Any]:
    """Return the metadata of an environment that draws from these tasks."""
    splits = {"splits": list(tasks.splits)} if tasks.splits else {}
    return {**metadata, "data": "dependent", **splits}


def tasks_of(env: gym.Env[Any, Any]) -> TaskSource | None:
    """Return the tasks that an environment keeps, wrapped or not; None if it keeps none, or several."""
    inner = env.unwrapped
    kept = [value for holder in (inner, *type(inner).__mro__) for value in vars(holder).values()]
    found = {id(value): value for value in kept if isinstance(value, TaskSource)}
    return next(iter(found.values())) if len(found) == 1 else None
