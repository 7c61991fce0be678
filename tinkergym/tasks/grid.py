"""The kind of an environment: single-turn or multi-turn, and data-free or data-dependent.

An environment declares it in its metadata; `tinkergym.testing.EnvContract` plays it and checks the
declaration.
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
    """The kind of an environment.

    Attributes:
        turns: `single`: one action ends the episode; `multi`: several actions.
        data: `free`: the seed determines the task; `dependent`: the task comes from data, and
            `reset(options={"task_index": i})` chooses it.
    """

    turns: Turns
    data: Data

    def __str__(self) -> str:
        return f"{self.turns}-turn, data-{self.data}"


def cell_of(env: gym.Env[Any, Any]) -> GridCell:
    """Return the kind that an environment declares, wrapped or not.

    Raises:
        InvalidEnvironmentError: Its metadata does not declare it, or declares an unknown one.
    """
    metadata = env.metadata or {}
    for key, known in (("turns", get_args(Turns)), ("data", get_args(Data))):
        value = metadata.get(key)
        if value not in known:
            problem = f"is {value!r}, which is not a valid kind" if value is not None else "is not set"
            raise InvalidEnvironmentError(
                f"metadata[{key!r}] of {type(env.unwrapped).__name__} {problem}",
                hint=f"metadata = {{..., {key!r}: {' or '.join(map(repr, known))}}}",
                field=f"metadata.{key}",
            )
    return GridCell(turns=metadata["turns"], data=metadata["data"])


def declares_cell(env: gym.Env[Any, Any]) -> bool:
    """Return whether the environment declares its kind; Gymnasium's own do not."""
    return not {"turns", "data"}.isdisjoint(env.metadata or {})


def with_tasks(metadata: Mapping[str, Any], tasks: TaskSource) -> dict[str, Any]:
    """Return the metadata of an environment that draws from these tasks."""
    splits = {"splits": list(tasks.splits)} if tasks.splits else {}
    return {**metadata, "data": "dependent", **splits}


def tasks_of(env: gym.Env[Any, Any]) -> TaskSource | None:
    """Return the tasks of an environment, wrapped or not; None if it has none, or several."""
    found = sources_of(env)
    return found[0] if len(found) == 1 else None


def sources_of(env: gym.Env[Any, Any]) -> list[TaskSource]:
    """Return all task sources of an environment, wrapped or not."""
    inner = env.unwrapped
    kept = [value for holder in (inner, *type(inner).__mro__) for value in vars(holder).values()]
    return list({id(value): value for value in kept if isinstance(value, TaskSource)}.values())
