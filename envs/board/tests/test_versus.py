import gymnasium as gym
import numpy as np
import pytest
from tinkergym_board.players import random_player
from tinkergym_board.text import cell_names, read_position

from tinkergym.errors import EpisodeProtocolError, InvalidRequestError
from tinkergym.testing.contract import EnvContract


def versus(size=3, win=3, opponent="random", **settings):
    """The environment without the wrappers that `gymnasium.make` adds."""
    made = gym.make("board/TicTacToeVs-v0", size=size, win=win, opponent=opponent, **settings)
    return made.unwrapped


def play(env, seed):
    """Play random legal moves and return everything that was seen."""
    rng = np.random.default_rng([seed, 1])
    observation, info = env.reset(seed=seed)
    seen, ended = [(observation, info)], False
    while not ended:
        cell = random_player(read_position(observation, env.game.rules), rng)
        observation, reward, ended, truncated, info = env.step(cell_names(env.game.rules.size)[cell])
        assert not truncated
        seen.append((observation, reward, ended, info))
    return seen


@pytest.mark.parametrize("opponent", ["random", "heuristic"])
@pytest.mark.parametrize(("size", "win"), [(3, 3), (5, 4), (9, 5)])
def test_gives_same_episode_by_same_seed_and_moves(size, win, opponent):
    one, other = versus(size, win, opponent), versus(size, win, opponent)
    for seed in range(20):
        play(other, seed + 1000)  # what was played before must not matter
        assert play(one, seed) == play(other, seed)


def test_ends_episode_with_result_as_reward_and_as_metrics():
    env, rewards = versus(), set()
    for seed in range(60):
        observation, reward, _, info = play(env, seed)[-1]
        name, verdict = {1.0: ("won", "You win."), 0.0: ("drawn", "Draw."), -1.0: ("lost", "You lose.")}[
            reward
        ]
        assert info["metrics"] == {"won": 0.0, "drawn": 0.0, "lost": 0.0, "illegal_move": 0.0, name: 1.0}
        assert observation.endswith(verdict)
        rewards.add(reward)
    assert rewards == {1.0, 0.0, -1.0}


def test_draws_seat_by_seed_and_begins_with_x():
    seats, env = [], versus()
    for seed in range(200):
        observation, _ = env.reset(seed=seed)
        seat, board = observation.split("\n", 1)
        seats.append(seat)
        assert board.count("X") == (0 if seat == "You are X." else 1)
        assert "O" not in board
    assert 70 < seats.count("You are X.") < 130
    assert set(seats) == {"You are X.", "You are O."}


def test_names_seat_in_the_first_observation_only():
    env = versus()
    (first, _), *rest = play(env, 3)
    assert first.startswith("You are ")
    assert not any("You are" in observation for observation, *_ in rest)


@pytest.mark.parametrize(
    "action",
    [
        "",
        "d4",
        "nonsense",
        "b2 please",
        pytest.param("💥" * 500, id="long"),
        pytest.param("\ud800", id="half a character"),
    ],
)
def test_loses_immediately_by_and_counts_what_is_no_cell(action):
    env = versus()
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(action)
    assert (reward, terminated, truncated) == (-1.0, True, False)
    assert info["metrics"]["illegal_move"] == 1.0
    assert "is no cell" in observation
    assert observation in env.observation_space


def test_loses_immediately_by_and_counts_a_taken_cell():
    env = versus()
    env.reset(seed=0)
    assert env.step("b2")[2] is False
    observation, reward, terminated, _, info = env.step("b2")
    assert (reward, terminated, info["metrics"]["illegal_move"]) == (-1.0, True, 1.0)
    assert "'b2' is taken" in observation


def test_rejects_step_without_a_running_game():
    env = versus()
    with pytest.raises(EpisodeProtocolError):
        env.step("a1")
    env.reset(seed=0)
    env.step("nonsense")
    with pytest.raises(EpisodeProtocolError):
        env.step("a1")


@pytest.mark.parametrize(
    ("settings", "field"),
    [({"size": 1}, "size"), ({"win": 9}, "win"), ({"opponent": "grandmaster"}, "opponent")],
)
def test_rejects_setting_that_makes_no_game_by_name(settings, field):
    with pytest.raises(InvalidRequestError) as refused:
        versus(**settings)
    assert refused.value.field == field


def test_tells_the_rules_only_when_asked():
    assert "system_prompt" not in versus().metadata
    assert versus(5, 4, instructions=True).metadata["system_prompt"].startswith("4 in a row")
    assert "system_prompt" not in versus().metadata


@pytest.mark.parametrize(
    ("env_id", "size", "win"), [("board/TicTacToeVs-v0", 3, 3), ("board/GomokuVs-v0", 5, 4)]
)
def test_has_board_of_registered_game_and_takes_another(env_id, size, win):
    made = gym.make(env_id).unwrapped
    assert (made.game.rules.size, made.game.rules.win) == (size, win)
    other = gym.make(env_id, size=7, win=5, opponent="heuristic").unwrapped
    assert (other.game.rules.size, other.game.rules.win) == (7, 5)


def test_renders_the_board():
    env = versus(render_mode="ansi")
    observation, _ = env.reset(seed=1)
    assert observation.endswith(env.render())


def test_asks_another_opponent_until_its_move_is_legal():
    env = versus()
    shown, answers = [], iter(["zz", "b2", "b2", "c3", "a1", "a2", "a3", "b1", "b3", "c1", "c2"])

    def answer(board):
        shown.append(board)
        return next(answers)

    env.seat_opponent(answer)
    observation, _ = env.reset(seed=_seed_where_the_agent_is("O", env))
    assert shown[0].startswith("You are X.")
    assert "a2 X c2" in observation
    observation, *_ = env.step("a1")
    # b2 was taken, so the next answer was asked for.
    assert observation.splitlines()[-1] == "a3 b3 X"
    assert shown[-1].startswith("'b2' is not a legal move.\nO b1 c1\n")


def _seed_where_the_agent_is(mark, env):
    probe = versus()
    return next(seed for seed in range(50) if probe.reset(seed=seed)[0].startswith(f"You are {mark}"))


class TestTicTacToe(EnvContract):
    environment_id = "board/TicTacToeVs-v0"

    def actions(self, seed):
        return np.random.default_rng(seed).permutation(cell_names(3)).tolist()


def test_lists_as_legal_the_actions_that_do_not_lose_immediately():
    env = versus()
    for seed in range(30):
        env.reset(seed=seed)
        for name in cell_names(3):
            env.reset(seed=seed)
            legal = name in env.legal_actions()
            assert legal == (env.step(name)[4].get("metrics", {}).get("illegal_move", 0.0) == 0.0)


def test_never_loses_by_gold_action_nor_uses_the_episodes_chance():
    for opponent in ("random", "heuristic"):
        env, asked = versus(opponent=opponent), versus(opponent=opponent)
        returns = []
        for seed in range(100):
            assert env.reset(seed=seed) == asked.reset(seed=seed)
            over = False
            while not over:
                move = asked.gold_action()
                assert move == asked.gold_action()
                step = env.step(move)
                assert step == asked.step(move)
                _, reward, over, _, _ = step
            returns.append(reward)
            assert asked.gold_action() is None
            assert asked.legal_actions() == []
        assert min(returns) == 0.0
        assert max(returns) == (1.0 if opponent == "random" else 0.0)


def test_knows_no_best_move_on_a_large_board():
    env = versus(5, 4)
    env.reset(seed=0)
    assert env.gold_action() is None
    assert len(env.legal_actions()) in (24, 25)
