"""Games drawn from a small catalogue of our own; the engine is not needed."""

import random

import pytest
from tinkergym_alfworld.catalogue import AFFORDANCES, Catalogue, Receptacle, Room
from tinkergym_alfworld.games import TASK_TYPES
from tinkergym_alfworld.made_game import draw_game, problem_of, walkthrough

KITCHEN = Room(
    number=1,
    kind="Kitchen",
    receptacles=tuple(
        Receptacle(f"{kind}|+0{i}|1.5", kind, f"loc|{i}|-2|0|30")
        for i, kind in enumerate(
            ["Cabinet", "CounterTop", "Desk", "Fridge", "Microwave", "SinkBasin", "Cabinet"]
        )
    ),
    objects=frozenset({"Mug", "Apple", "Desk"}),
)
ANYTHING = frozenset({"Mug", "Apple"})
CATALOGUE = Catalogue(
    version="a catalogue for tests",
    holds=dict.fromkeys(("Cabinet", "CounterTop", "Desk", "Fridge", "Microwave", "SinkBasin"), ANYTHING),
    openable=frozenset({"Cabinet", "Fridge", "Microwave"}),
    containers=frozenset({"Mug"}),
    affords={
        name: frozenset({"Mug"}) | ({"DeskLamp"} if name == "Toggleable" else set()) for name in AFFORDANCES
    },
    rooms_for={task: frozenset({"Kitchen"}) for task in TASK_TYPES},
    seen=[KITCHEN],
    unseen=[],
)


def drawn(task_type, seed, most=7, others=None):
    rng = random.Random(f"{task_type}/{seed}")
    return draw_game(task_type, [KITCHEN], CATALOGUE, rng, most_receptacles=most, most_others=others)


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_derives_game_from_its_seed_and_never_begins_solved(task_type):
    games = [drawn(task_type, seed) for seed in range(20)]
    assert games == [drawn(task_type, seed) for seed in range(20)]
    for game in filter(None, games):
        kinds = {one.id: one.kind for one in game.receptacles}
        assert all(kinds[one.inside] != game.place for one in game.things if one.kind == game.target)
        problem = problem_of(game, CATALOGUE)
        assert problem.count("(") == problem.count(")")
        assert not set("|+,") & set(problem)
    assert any(games)


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_opens_closed_containers_once_and_ends_walkthrough_at_goal(task_type):
    game = next(filter(None, (drawn(task_type, seed) for seed in range(50))))
    way = walkthrough(game, lambda one: one, CATALOGUE.openable)
    opened = [command for command in way if command.startswith("open ")]
    assert len(opened) == len(set(opened))
    last = {"look_at_obj_in_light": "use "}.get(task_type, "move ")
    assert way[-1].startswith(last)
    taken = sum(command.startswith("take ") for command in way)
    assert taken == (2 if task_type == "pick_two_obj_and_place" else 1)


def test_cuts_a_large_room_to_one_of_each_kind_first():
    for seed in range(20):
        game = drawn("pick_and_place_simple", seed, most=6)
        assert game is None or sorted(one.kind for one in game.receptacles) == sorted(CATALOGUE.holds)


def test_makes_no_game_of_too_small_room():
    assert all(drawn("pick_and_place_simple", seed, most=2) is None for seed in range(5))


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_limits_objects_that_the_task_does_not_need(task_type):
    games = [game for seed in range(50) if (game := drawn(task_type, seed, others=1)) is not None]
    for game in games:
        needed = [one for one in game.things if one.kind in (game.target, game.place)]
        assert len(game.things) - len(needed) <= 1
        assert sum(one.kind == game.target for one in needed) >= (task_type == "pick_two_obj_and_place") + 1
        assert walkthrough(game, lambda one: one, CATALOGUE.openable)
    assert any(len(game.things) > 1 for game in games)
