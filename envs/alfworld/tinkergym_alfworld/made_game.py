"""A small game drawn from the catalogue: a room, a goal, the objects' places, and a solution.

Pure functions of a generator and a catalogue, without the engine. Sets are sorted before drawing from them,
so a seed gives the same bytes in every process.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tinkergym_alfworld.catalogue import Catalogue, Receptacle, Room

TOOLS = {
    "pick_clean_then_place_in_recep": ("SinkBasin", "Cleanable", "isClean", "clean"),
    "pick_heat_then_place_in_recep": ("Microwave", "Heatable", "isHot", "heat"),
    "pick_cool_then_place_in_recep": ("Fridge", "Coolable", "isCool", "cool"),
}
"""By task type: the receptacle it needs, the object's required property, its resulting state, and the
verb."""
SENTENCES = {
    "pick_and_place_simple": "put a {thing} in {place}.",
    "look_at_obj_in_light": "look at {thing} under the {place}.",
    "pick_clean_then_place_in_recep": "put a clean {thing} in {place}.",
    "pick_heat_then_place_in_recep": "put a hot {thing} in {place}.",
    "pick_cool_then_place_in_recep": "put a cool {thing} in {place}.",
    "pick_two_obj_and_place": "put two {thing} in {place}.",
}
_LAMP = "DeskLamp"
_LAMPS = (_LAMP, "FloorLamp")
_LAMP_STANDS = ("Desk", "SideTable", "Dresser", "CoffeeTable", "DiningTable")
_FEWEST_RECEPTACLES = 3
_PREDICATES = {
    "Cleanable": "cleanable",
    "Heatable": "heatable",
    "Coolable": "coolable",
    "Sliceable": "sliceable",
    "Toggleable": "toggleable",
}


@dataclass(frozen=True, slots=True)
class Thing:
    """An object and its place."""

    id: str
    kind: str
    inside: str
    """A receptacle's id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeGame:
    """A game."""

    task_type: str
    room: int
    receptacles: tuple[Receptacle, ...]
    things: tuple[Thing, ...]
    target: str
    """Kind of the object."""
    place: str
    """Kind of receptacle that it belongs in; for `look_at_obj_in_light`, kind of lamp."""

    @property
    def sentence(self) -> str:
        """The task in words."""
        return SENTENCES[self.task_type].format(thing=self.target.lower(), place=self.place.lower())

    def kind_of(self, receptacle: str) -> str:
        """Return the kind of a receptacle."""
        return next(one.kind for one in self.receptacles if one.id == receptacle)


def draw_game(
    task_type: str,
    rooms: Sequence[Room],
    catalogue: Catalogue,
    rng: random.Random,
    *,
    most_receptacles: int,
    most_others: int | None = None,
) -> MadeGame | None:
    """Draw a game, or None if this draw cannot produce one.

    Args:
        task_type: One of ALFWorld's.
        rooms: The rooms to choose from, which fit the task.
        catalogue: The catalogue.
        rng: The source of randomness.
        most_receptacles: Limit for receptacles; from a larger room this many are drawn.
        most_others: Limit for objects that the task does not need; of more this many are drawn.
    """
    room = rng.choice(rooms)
    receptacles = _some(room.receptacles, most_receptacles, rng)
    kinds = {one.kind for one in receptacles}
    small = {kind for place in kinds for kind in catalogue.holds[place]} & room.objects - {*_LAMPS}
    room = replace(room, receptacles=tuple(receptacles), objects=frozenset(small))
    if len(receptacles) < _FEWEST_RECEPTACLES or not small:
        return None
    goal = _drawn_goal(task_type, kinds, sorted(small), catalogue, rng)
    things = None if goal is None else _laid_out(task_type, room, goal, catalogue, rng)
    if goal is None or things is None:
        return None
    others = [one for one in things if one.kind not in goal]
    if most_others is not None and len(others) > most_others:
        dropped = set(others) - set(rng.sample(others, most_others))
        things = [one for one in things if one not in dropped]
    return MadeGame(
        task_type=task_type,
        room=room.number,
        receptacles=room.receptacles,
        things=tuple(things),
        target=goal[0],
        place=goal[1],
    )


def _some(receptacles: Sequence[Receptacle], most: int, rng: random.Random) -> list[Receptacle]:
    """Return at most this many, one of each kind before a second one of any."""
    if len(receptacles) <= most:
        return list(receptacles)
    mixed = rng.sample(receptacles, len(receptacles))
    first: dict[str, Receptacle] = {}
    for one in mixed:
        first.setdefault(one.kind, one)
    ordered = [*first.values(), *(one for one in mixed if first[one.kind] is not one)]
    return sorted(ordered[:most], key=lambda one: one.id)


def _drawn_goal(
    task_type: str, kinds: set[str], small: Sequence[str], catalogue: Catalogue, rng: random.Random
) -> tuple[str, str] | None:
    if task_type == "look_at_obj_in_light":
        return (rng.choice(small), _LAMP) if kinds & {*_LAMP_STANDS} else None
    tool, affordance = TOOLS[task_type][:2] if task_type in TOOLS else (None, None)
    if tool is not None and tool not in kinds:
        return None
    pairs = sorted(
        (thing, place)
        for place in kinds - {tool}
        for thing in catalogue.holds[place] & {*small}
        if affordance is None or thing in catalogue.affords[affordance]
    )
    return rng.choice(pairs) if pairs else None


def _laid_out(
    task_type: str, room: Room, goal: tuple[str, str], catalogue: Catalogue, rng: random.Random
) -> list[Thing] | None:
    """Put the target at a wrong place, and other objects anywhere; None if there is no such place."""
    target, place = goal
    banned = {place, TOOLS[task_type][0] if task_type in TOOLS else place}
    things = []
    for kind in sorted(room.objects):
        spots = [
            one.id
            for one in room.receptacles
            if kind in catalogue.holds[one.kind] and not (kind == target and one.kind in banned)
        ]
        if not spots:
            if kind == target:
                return None
            continue
        if kind != target:
            count = rng.choice([0, 1, 1, 2])
        else:
            count = rng.randint(2, 3) if task_type == "pick_two_obj_and_place" else 1
        things += [Thing(f"{kind}|{room.number}|{i}", kind, rng.choice(spots)) for i in range(count)]
    if place == _LAMP:
        stands = [one.id for one in room.receptacles if one.kind in _LAMP_STANDS]
        things.append(Thing(f"{_LAMP}|{room.number}|0", _LAMP, rng.choice(stands)))
    return things


# --- the problem ---


def mangled(name: str) -> str:
    """Return an id in PDDL's spelling."""
    for sign, word in (("-", "minus"), ("|", "bar"), ("+", "plus"), (".", "dot"), (",", "comma")):
        name = name.replace(sign, f"_{word}_")
    return name


def problem_of(game: MadeGame, catalogue: Catalogue) -> str:
    """Return the game as a PDDL problem of ALFWorld's domain."""
    kinds = sorted({one.kind for one in game.receptacles})
    thing_kinds = sorted({one.kind for one in game.things})
    objects = [
        "agent1 - agent",
        # The agent starts at a separate place, so that the introduction lists the whole room.
        f"{mangled('loc|start')} - location",
        *(f"{mangled(one.location)} - location" for one in game.receptacles),
        *(f"{mangled(one.id)} - receptacle" for one in game.receptacles),
        *(f"{mangled(one.id)} - object" for one in game.things),
        *(f"{kind}Type - rtype" for kind in kinds),
        *(f"{kind}Type - otype" for kind in thing_kinds),
    ]
    facts = [
        "(= (total-cost) 0)",
        f"(atLocation agent1 {mangled('loc|start')})",
        *_facts_of_places(game, catalogue),
        *_facts_of_things(game, catalogue),
        *(
            f"(canContain {place}Type {thing}Type)"
            for place in kinds
            for thing in thing_kinds
            if thing in catalogue.holds[place]
        ),
    ]
    lines = ["(define (problem made)", "(:domain alfred)", "(:objects"]
    lines += [f" {one}" for one in objects] + [")", "(:init"] + [f" {one}" for one in facts]
    return "\n".join([*lines, ")", f"(:goal {_goal(game)})", "(:metric minimize (total-cost)))", ""])


def _facts_of_places(game: MadeGame, catalogue: Catalogue) -> list[str]:
    facts = []
    for one in game.receptacles:
        name = mangled(one.id)
        facts += [f"(receptacleType {name} {one.kind}Type)"]
        facts += [f"(receptacleAtLocation {name} {mangled(one.location)})"]
        facts += [f"(openable {name})"] if one.kind in catalogue.openable else []
    return facts


def _facts_of_things(game: MadeGame, catalogue: Catalogue) -> list[str]:
    location = {one.id: mangled(one.location) for one in game.receptacles}
    facts = []
    for one in game.things:
        name = mangled(one.id)
        facts += [f"(objectType {name} {one.kind}Type)", f"(inReceptacle {name} {mangled(one.inside)})"]
        facts += [f"(objectAtLocation {name} {location[one.inside]})"]
        facts += [f"(pickupable {name})"] if one.kind not in _LAMPS else []
        facts += [f"(isReceptacleObject {name})"] if one.kind in catalogue.containers else []
        facts += [
            f"({predicate} {name})"
            for affordance, predicate in _PREDICATES.items()
            if one.kind in catalogue.affords[affordance]
        ]
    return facts


def _goal(game: MadeGame) -> str:
    target, place = f"{game.target}Type", f"{game.place}Type"
    if game.task_type == "look_at_obj_in_light":
        lit = (
            f"(exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?ot {place}) "
            "(toggleable ?ot) (isToggled ?ot) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) "
            "(inReceptacle ?ot ?r)))"
        )
        held = f"(exists (?o - object ?a - agent) (and (objectType ?o {target}) (holds ?a ?o)))"
        return f"(and {lit} {held})"
    if game.task_type == "pick_two_obj_and_place":
        return (
            "(exists (?r - receptacle ?o1 - object ?o2 - object) (and (not (= ?o1 ?o2)) "
            f"(receptacleType ?r {place}) (objectType ?o1 {target}) (objectType ?o2 {target}) "
            "(inReceptacle ?o1 ?r) (inReceptacle ?o2 ?r)))"
        )
    done = f"({TOOLS[game.task_type][2]} ?o) " if game.task_type in TOOLS else ""
    return (
        f"(exists (?r - receptacle ?o - object) (and (objectType ?o {target}) (receptacleType ?r {place}) "
        f"{done}(inReceptacle ?o ?r)))"
    )


# --- the solution ---


def walkthrough(game: MadeGame, name: Callable[[str], str], openable: frozenset[str]) -> list[str]:
    """Return commands that win from the initial state.

    Args:
        game: The game.
        name: Returns the engine's name for an object's id.
        openable: Kinds of receptacle that start closed.
    """
    commands: list[str] = []
    opened: set[str] = set()

    def go(receptacle: str) -> None:
        commands.append(f"go to {name(receptacle)}")
        if game.kind_of(receptacle) in openable and receptacle not in opened:
            opened.add(receptacle)
            commands.append(f"open {name(receptacle)}")

    def take(thing: Thing) -> None:
        go(thing.inside)
        commands.append(f"take {name(thing.id)} from {name(thing.inside)}")

    targets = [one for one in game.things if one.kind == game.target]
    if game.task_type == "look_at_obj_in_light":
        lamp = next(one for one in game.things if one.kind == game.place)
        take(targets[0])
        if lamp.inside != targets[0].inside:
            commands.append(f"go to {name(lamp.inside)}")
        return [*commands, f"use {name(lamp.id)}"]
    place = next(one.id for one in game.receptacles if one.kind == game.place)
    for thing in targets[: 2 if game.task_type == "pick_two_obj_and_place" else 1]:
        take(thing)
        if game.task_type in TOOLS:
            tool, _, _, verb = TOOLS[game.task_type]
            there = next(one.id for one in game.receptacles if one.kind == tool)
            commands += [f"go to {name(there)}", f"{verb} {name(thing.id)} with {name(there)}"]
        go(place)
        commands.append(f"move {name(thing.id)} to {name(place)}")
    return commands
