"""The environment with a counterpart of ALFWorld's engine; `test_alfworld_package.py` has the real one."""

import contextlib
import json
import subprocess
import sys
import textwrap

import psutil
import pytest
from tinkergym_alfworld.environment import command_in

from tinkergym.errors import (
    EnvironmentInfrastructureError,
    EnvironmentTimeoutError,
    EpisodeProtocolError,
    InvalidRequestError,
)
from tinkergym.registration.environments import make
from tinkergym.testing.contract import EnvContract

ID = "alfworld/Household-v0"


@pytest.mark.full("starts engines for each check")
class TestTheContract(EnvContract):
    @pytest.fixture(autouse=True)
    def _games(self, house):
        self.kind = house

    def make(self):
        return self.kind(max_steps=8)


def test_plays_the_own_game_and_wins_at_its_end(house):
    env = house(split="valid_seen")
    observation, info = env.reset(options={"task_index": 2})
    assert observation.startswith("You are in the middle of a counterpart")
    assert observation.endswith("Your task is to: put a red in desk.")
    assert info["task_type"] == "pick_and_place_simple"
    rewards = []
    while env.gold_action():
        *_, info = step = env.step(env.gold_action())
        rewards.append(step[1])
    assert rewards == [0.0, 0.0, 0.0, 1.0]
    assert info["metrics"] == {
        "unknown_commands": 0.0,
        "success": 1.0,
        "success_pick_and_place_simple": 1.0,
    }
    with pytest.raises(EpisodeProtocolError):
        env.step("look")
    env.close()


def test_charges_penalty_for_each_impossible_command_and_no_other(house):
    env = house(max_steps=3, unknown_penalty=0.1)
    env.reset(options={"task_index": 2})
    assert [env.step(command)[1] for command in ("fly", env.gold_action(), "swim")] == [-0.1, 0.0, -0.1]
    env.close()


def test_changes_nothing_when_impossible_and_truncates_by_budget(house):
    env = house(max_steps=2, show_commands=True)
    env.reset(seed=0)
    before = env.legal_actions()
    observation, reward, terminated, truncated, info = env.step("fly to the moon")
    assert observation.startswith("Nothing happens.\nCommands: look, go to desk 1")
    assert (reward, terminated, truncated, info["metrics"]) == (0.0, False, False, {"unknown_commands": 1.0})
    assert env.legal_actions() == before
    *_, terminated, truncated, info = env.step("look")
    assert (terminated, truncated, info["metrics"]["success"]) == (False, True, 0.0)
    env.close()


@pytest.mark.parametrize(
    ("said", "command"),
    [
        ("Go to  desk 1 ", "go to desk 1"),
        ("I need the mug.\nAction: take mug 1 from bed 1\n", "take mug 1 from bed 1"),
        ("> look", "look"),
        ("put mug 1 in/on desk 1", "move mug 1 to desk 1"),
        ("put mug 1 on desk 1", "move mug 1 to desk 1"),
        ("", ""),
        ("\n \n", ""),
    ],
)
def test_reads_command_from_the_last_line(said, command):
    assert command_in(said) == command


@pytest.mark.parametrize("trouble", ["break", "die"])
def test_loses_episode_when_engine_fails_and_starts_another_engine(house, write, trouble):
    write("train", "a", trouble=trouble)
    env = house()
    env.reset(options={"task_index": 0})
    with pytest.raises(EnvironmentInfrastructureError):
        env.step("look")
    with pytest.raises(EpisodeProtocolError):
        env.step("look")
    env.reset(options={"task_index": 1})
    assert env.step("look")[1] == 0.0
    env.close()


def test_kills_an_engine_that_hangs(house, write):
    write("train", "a", trouble="hang")
    env = house(call_seconds=0.2)
    env.reset(options={"task_index": 0})
    process = env._engine._process
    with pytest.raises(EnvironmentTimeoutError):
        env.step("look")
    assert process.poll() is not None
    env.close()


def test_shares_an_engine_between_environments_with_successive_episodes(house):
    first, second = house(), house(split="valid_seen")
    first.reset(options={"task_index": 0})
    engine = first._engine
    while first.gold_action():
        first.step(first.gold_action())
    assert first._engine is None
    second.reset(options={"task_index": 0})
    assert second._engine is engine
    second.end_episode()
    with pytest.raises(EpisodeProtocolError):
        second.step("look")

    first.reset(options={"task_index": 1})
    second.reset(options={"task_index": 1})
    assert first._engine is engine
    assert second._engine is not engine
    processes = [psutil.Process(env._engine._process.pid) for env in (first, second)]
    first.close()
    assert all(process.is_running() for process in processes)
    second.close()
    assert not any(process.is_running() for process in processes)


def test_loses_no_episode_when_engine_ends_in_between(house):
    env = house()
    env.reset(options={"task_index": 0})
    process = psutil.Process(env._engine._process.pid)
    env.end_episode()
    process.kill()
    process.wait()
    env.reset(options={"task_index": 0})
    assert env.step("look")[1] == 0.0
    env.close()


def test_leaves_no_answer_of_interrupted_call_for_next_episode(house, monkeypatch):
    env = house()
    env.reset(options={"task_index": 0})

    class Interrupted:
        def get(self, timeout):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(env._engine, "_lines", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            env.step("look")
    observation, _ = env.reset(options={"task_index": 1})
    assert observation.startswith("You are in the middle")
    env.close()


def test_ends_the_engines_process_with_the_playing_one(house):
    script = textwrap.dedent(f"""
        import sys
        from tinkergym_alfworld.engine import EngineProcess
        engine = EngineProcess(call_seconds=30, command=(sys.executable, {house.worker[1]!r}))
        engine.ask("load", problem='{{"places": {{"a": []}}, "goal": ["b", "a"]}}', task="x")
        print(engine._process.pid, flush=True)
        sys.stdin.read()
    """)
    player = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    engine = psutil.Process(int(player.stdout.readline()))
    player.kill()
    player.wait()
    with contextlib.suppress(psutil.NoSuchProcess):
        engine.wait(timeout=120)


def test_takes_games_of_the_split_in_order_of_their_paths(house, write):
    write("train", "a-Sliced")
    write("train", "movable")
    write("train", "b", solvable=False)
    write("train", "c", task_type="look_at_obj_in_light")
    write("train", "d", task_type="pick_and_place_with_movable_recep")
    env = house()
    assert [row["task"] for row in env.tasks] == [
        "put a blue-ish in desk.",
        "put a c in desk.",
        "put a green in desk.",
        "put a red in desk.",
    ]
    assert [row["game"] for row in house(task_types=["look_at_obj_in_light"]).tasks] == [
        "json_2.1.1/train/c/trial_1"
    ]
    assert env.metadata["splits"] == ["train", "valid_seen", "valid_unseen"]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"split": "test"}, "split"),
        ({"task_types": ["cook"]}, "task_types"),
        ({"task_types": ["look_at_obj_in_light"]}, "task_types"),
        ({"games": "other"}, "games"),
        ({"games": "made"}, "games"),
        ({"max_steps": 0}, "max_steps"),
        ({"unknown_penalty": -0.1}, "unknown_penalty"),
        ({"unknown_penalty": float("nan")}, "unknown_penalty"),
        ({"unknown_penalty": "0.1"}, "unknown_penalty"),
        ({"unknown_penalty": True}, "unknown_penalty"),
        ({"call_seconds": -100}, "call_seconds"),
        ({"call_seconds": 0}, "call_seconds"),
        ({"call_seconds": "60"}, "call_seconds"),
        ({"call_seconds": float("nan")}, "call_seconds"),
        ({"call_seconds": 1e300}, "call_seconds"),
    ],
)
def test_rejects_wrong_setting(house, settings, field):
    with pytest.raises(InvalidRequestError) as error:
        house(**settings).reset(seed=0)
    assert error.value.field == field


def test_never_takes_made_games_for_the_official_ones(house, write):
    write("train", "another", made=True)
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "games"):
        house()
    assert house(games="made").tasks.name.startswith("made ALFWorld games")


def test_says_in_one_sentence_what_to_do_without_data(house, monkeypatch, tmp_path):
    for named in ("", str(tmp_path / "nowhere")):
        monkeypatch.setenv("ALFWORLD_DATA", named)
        with pytest.raises(InvalidRequestError) as error:
            house()
        assert error.value.field == "environment"


def test_names_missing_package_and_what_to_do_in_one_sentence(house, monkeypatch):
    monkeypatch.setitem(sys.modules, "alfworld", None)
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "environment") as error:
        make(ID)
    assert "envs/alfworld[games]" in error.value.hint


def test_rejects_as_task_a_sentence_that_could_hold_code(write, house):
    folder = write("train", "a") / "json_2.1.1" / "train" / "a" / "trial_1"
    game = (folder / "game.tw-pddl").read_text()
    (folder / "game.tw-pddl").write_text(game.replace("put a a", "{__import__('os')}"))
    with pytest.raises(InvalidRequestError):
        house().reset(options={"task_index": 0})


@pytest.mark.parametrize("walkthrough", [5, "look", [1], {"look": 1}])
def test_rejects_game_whose_solution_is_not_a_list_of_commands(write, house, walkthrough):
    file = write("train", "a") / "json_2.1.1" / "train" / "a" / "trial_1" / "game.tw-pddl"
    game = json.loads(file.read_text())
    file.write_text(json.dumps({**game, "walkthrough": walkthrough}))
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "walkthrough"):
        house().reset(options={"task_index": 0})


@pytest.mark.parametrize("name", ["game.tw-pddl", "traj_data.json"])
def test_rejects_file_that_is_nested_too_deeply(write, house, name):
    folder = write("train", "a") / "json_2.1.1" / "train" / "a" / "trial_1"
    (folder / name).write_text('{"solvable": true, "task_type": ' + "[" * 100_000)
    with pytest.raises(InvalidRequestError):
        house().reset(options={"task_index": 0})
