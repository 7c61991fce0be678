"""The scripted player, with commands as the engine offers them."""

import random

from tinkergym_alfworld.searcher import Searcher

WAYS = ["go to countertop 1", "go to toilet 1"]


def player(mistakes=0.0, task="put a toiletpaper in toilet."):
    made = Searcher(random.Random(0), mistakes=mistakes)
    made.reset(f"You are in a room. Your task is to: {task}")
    return made


def test_takes_object_whose_name_contains_that_of_the_place():
    assert (
        player().act([*WAYS, "take toiletpaper 1 from countertop 1"])
        == "take toiletpaper 1 from countertop 1"
    )


def test_leaves_object_that_is_already_in_its_place():
    assert player().act([*WAYS, "take toiletpaper 1 from toilet 1"]) in WAYS


def test_wastes_turn_on_a_mistake_and_names_only_what_exists():
    searcher = player(mistakes=1.0, task="put a mug in desk.")
    shelf = ["go to desk 1", "open shelf 1"]
    assert {searcher.act(shelf) for _ in range(20)} == {"inventory", "look"}  # it is nowhere yet
    searcher = player(mistakes=0.5, task="put a mug in desk.")
    done = set()
    while "go to shelf 1" not in done:
        done.add(searcher.act(["go to shelf 1"]))
    assert done <= {"go to shelf 1", "inventory", "look"}
    wasted = {searcher.act(shelf) for _ in range(100)} - set(shelf)
    assert {"inventory", "look", "take mug 1 from shelf 1", "move mug 1 to shelf 1"} <= wasted


def test_changes_no_plan_by_a_mistake():
    searcher = player(mistakes=0.5, task="put a mug in desk.")
    while searcher.act(["go to shelf 1"]) != "go to shelf 1":
        pass
    shelf = ["go to desk 1", "take mug 1 from shelf 1"]
    while searcher.act(shelf) != "take mug 1 from shelf 1":
        pass
    while (command := searcher.act(["go to desk 1", "move mug 1 to shelf 1"])) != "go to desk 1":
        assert command in {"inventory", "look", "go to shelf 1", "open shelf 1", "take mug 1 from shelf 1"}
    while searcher.act(["go to shelf 1", "move mug 1 to desk 1"]) != "move mug 1 to desk 1":
        pass
