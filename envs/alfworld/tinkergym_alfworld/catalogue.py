"""ALFWorld's data on rooms and objects: what is where, what fits where, and what can be done with it."""

from __future__ import annotations

import importlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

AFFORDANCES = ("Cleanable", "Heatable", "Coolable", "Sliceable", "Toggleable")


@dataclass(frozen=True, slots=True)
class Receptacle:
    """A place for things in a room."""

    id: str
    kind: str
    location: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A room of the catalogue."""

    number: int
    kind: str
    """`Kitchen`, `LivingRoom`, `Bedroom` or `Bathroom`."""
    receptacles: tuple[Receptacle, ...]
    objects: frozenset[str]
    """Kinds of object that belong there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """The complete catalogue."""

    version: str
    """Digest of its source."""
    holds: Mapping[str, frozenset[str]]
    """Kinds of object by the kind of receptacle that accepts them."""
    openable: frozenset[str]
    containers: frozenset[str]
    """Kinds of object that can contain others."""
    affords: Mapping[str, frozenset[str]]
    """Kinds of object by what can be done with them."""
    rooms_for: Mapping[str, frozenset[str]]
    """Kinds of room by task type."""
    seen: Sequence[Room]
    """Rooms for training."""
    unseen: Sequence[Room]
    """Rooms for evaluation only."""


@cache
def packaged() -> Catalogue:
    """Read the catalogue from the installed package `alfworld`."""
    with _environment_kept():
        constants = importlib.import_module("alfworld.gen.constants")
        layouts = Path(next(iter(importlib.import_module("alfworld.gen").__path__))) / "layouts"
    containers = frozenset(constants.MOVABLE_RECEPTACLES_SET)
    holds = {
        kind: frozenset(name for name in names if not name.endswith("Sliced"))
        for kind, names in constants.VAL_RECEPTACLE_OBJECTS.items()
        if kind not in containers
    }

    def rooms(numbers: Sequence[int]) -> list[Room]:
        return [_room(layouts, number, constants.SCENE_TYPE, holds) for number in numbers]

    return Catalogue(
        version=f"alfworld {version('alfworld')}",
        holds=holds,
        openable=frozenset(constants.OPENABLE_CLASS_SET),
        containers=containers,
        affords={name: frozenset(constants.VAL_ACTION_OBJECTS[name]) for name in AFFORDANCES},
        rooms_for={task: frozenset(kinds) for task, kinds in constants.GOALS_VALID.items()},
        seen=rooms(constants.TRAIN_SCENE_NUMBERS),
        unseen=rooms(constants.TEST_SCENE_NUMBERS),
    )


@contextmanager
def _environment_kept() -> Iterator[None]:
    """Import ALFWorld without its side effects: creating a folder and setting `ALFWORLD_DATA`."""
    before = os.environ.get("ALFWORLD_DATA")
    os.environ["ALFWORLD_DATA"] = tempfile.gettempdir()
    try:
        yield
    finally:
        if before is None:
            del os.environ["ALFWORLD_DATA"]
        else:
            os.environ["ALFWORLD_DATA"] = before


def _room(layouts: Path, number: int, kinds: Mapping[str, Any], holds: Mapping[str, Any]) -> Room:
    plan = json.loads((layouts / f"FloorPlan{number}-openable.json").read_text(encoding="utf-8"))
    objects = json.loads((layouts / f"FloorPlan{number}-objects.json").read_text(encoding="utf-8"))
    receptacles: list[Receptacle] = []
    taken: set[tuple[int, ...]] = set()
    for one, pose in sorted(plan.items()):
        kind = _kind_of(one)
        if kind not in holds:
            continue
        x, z, rotation, horizon = pose
        place = [int(x * 4), int(z * 4), int(rotation // 90), int(horizon)]
        # Two may be reached from one place; separate names read better.
        while tuple(place) in taken:
            place[3] += 1
        taken.add(tuple(place))
        receptacles.append(Receptacle(one, kind, "|".join(map(str, ["loc", *place]))))
    return Room(
        number=number,
        kind=next(kind for kind, numbers in kinds.items() if number in numbers),
        receptacles=tuple(receptacles),
        objects=frozenset(objects),
    )


def _kind_of(receptacle: str) -> str:
    last = receptacle.rpartition("|")[2]
    return last if last in ("SinkBasin", "BathtubBasin") else receptacle.partition("|")[0]
