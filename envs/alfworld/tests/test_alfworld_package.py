"""With the real packages: games are made, played by ALFWorld's engine, won, and always the same."""

import json

import pytest

pytest.importorskip("alfworld", reason="needs the package alfworld: scripts/test_extras.sh alfworld")

from tinkergym_alfworld.engine import EngineProcess
from tinkergym_alfworld.games import MANIFEST, TASK_TYPES
from tinkergym_alfworld.make_games import Wanted, made_games, main
from tinkergym_alfworld.searcher import Searcher

from tinkergym.errors import EnvironmentInfrastructureError, InvalidRequestError
from tinkergym.registration.environments import make
from tinkergym.testing.contract import EnvContract

ID = "alfworld/Household-v0"
WANTED = Wanted(train=2, valid=1, most_receptacles=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made_games(tmp_path_factory.mktemp("games") / "made", WANTED)


@pytest.fixture(autouse=True)
def named(folder, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(folder))


class TestMadeGames(EnvContract):
    environment_id = ID
    kwargs = {"games": "made", "max_steps": 12}  # noqa: RUF012 - as EnvContract declares it


def test_wins_every_game_of_every_type_by_its_walkthrough():
    for split, count in (("train", 12), ("valid_seen", 6), ("valid_unseen", 6)):
        env = make(ID, games="made", split=split, show_commands=True)
        assert len(env.unwrapped.tasks) == count
        seen = set()
        for index in range(count):
            observation, info = env.reset(options={"task_index": index})
            assert observation.startswith("You are in the middle of a room.")
            assert "Your task is to: " in observation
            over = False
            while not over:
                action = env.get_wrapper_attr("gold_action")()
                assert action in observation
                observation, reward, over, truncated, _ = env.step(action)
            assert (reward, truncated) == (1.0, False)
            seen.add(info["task_type"])
        assert seen == set(TASK_TYPES)
        env.close()


def test_makes_the_same_files_of_the_same_arguments(folder, tmp_path):
    wanted = ["--train", "2", "--valid", "1", "--most-receptacles", "6"]
    main([str(tmp_path / "again"), *wanted])
    files = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    assert len(files) == 1 + 2 * 24
    for file in files:
        assert (tmp_path / "again" / file).read_bytes() == (folder / file).read_bytes()
    # Made once, and then found.
    assert made_games(folder, WANTED) == folder
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "folder"):
        made_games(folder, Wanted(train=1, valid=1))


def test_makes_only_rooms_of_the_wanted_kinds(tmp_path):
    task = ("pick_and_place_simple",)
    bathrooms = Wanted(train=3, valid=1, task_types=task, room_kinds=("Bathroom",))
    games = json.loads((made_games(tmp_path / "made", bathrooms) / MANIFEST).read_text())["games"]
    # ALFWorld numbers its bathrooms from 401 to 430.
    assert {path.split("/")[2].rsplit("-")[-1][0] for path in games} == {"4"}

    cold = Wanted(task_types=("pick_cool_then_place_in_recep",), room_kinds=("Bathroom",))
    with pytest.raises(InvalidRequestError) as refused:
        made_games(tmp_path / "cold", cold)
    assert refused.value.field == "room_kinds"


def test_shares_unseen_rooms_with_no_other_split(folder):
    games = json.loads((folder / MANIFEST).read_text())["games"]
    assert len(set(games.values())) == len(games)
    rooms = {
        split: {path.split("/")[2].rsplit("-")[-1] for path in games if f"/{split}/" in path}
        for split in ("train", "valid_seen", "valid_unseen")
    }
    assert not rooms["valid_unseen"] & (rooms["train"] | rooms["valid_seen"])


def test_takes_no_made_games_for_official_ones():
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "games"):
        make(ID)


def test_wins_most_games_by_a_searching_player():
    import random

    env = make(ID, games="made", task_types=["pick_and_place_simple"])
    won = 0.0
    for index in range(2):
        observation, _ = env.reset(options={"task_index": index})
        player, over = Searcher(random.Random(0)), False
        player.reset(observation)
        while not over:
            _, reward, terminated, truncated, _ = env.step(
                player.act(env.get_wrapper_attr("legal_actions")())
            )
            over = terminated or truncated
        won += reward
    assert won == 2.0
    env.close()


def test_reports_malformed_problem_as_engine_failure_and_plays_next_game(folder):
    engine = EngineProcess(call_seconds=60)
    with pytest.raises(EnvironmentInfrastructureError):
        engine.ask("load", problem="(define (problem x) (:domain alfred)", task="put a mug in desk.")
    (game,) = sorted((folder / "json_2.1.1" / "valid_seen").rglob("game.tw-pddl"))[:1]
    problem = json.loads(game.read_text())["pddl_problem"]
    assert "You are in" in engine.ask("load", problem=problem, task="put a mug in desk.")["feedback"]
    engine.close()


def test_plays_same_game_after_others_and_in_another_process(folder):
    games = sorted((folder / "json_2.1.1" / "valid_seen").rglob("game.tw-pddl"))[:2]

    def shown(engine, file):
        game = json.loads(file.read_text())
        opening = engine.ask("load", problem=game["pddl_problem"], task="put a mug in desk.")
        return [opening, *(engine.ask("step", command=command) for command in game["walkthrough"])]

    used, fresh = EngineProcess(call_seconds=60), EngineProcess(call_seconds=60)
    first = shown(used, games[0])
    assert first[-1]["won"]
    assert shown(used, games[1]) == shown(fresh, games[1])
    assert shown(used, games[0]) == first == shown(fresh, games[0])
    used.close()
    fresh.close()
