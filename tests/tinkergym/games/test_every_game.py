"""What holds for every `TextGame` of every installed pack. TextArena's games are tested in their pack."""

import re
import warnings
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from pettingzoo.test import api_test, parallel_api_test, seed_test
from pettingzoo.utils.conversions import aec_to_parallel

from tinkergym import make, make_game
from tinkergym.registration.packs import registered_games

# The bridge to PettingZoo needs packages that not everybody has.
ELSEWHERE = ("test/", "textarena/", *(() if find_spec("rlcard") else ("pettingzoo/",)))
GAMES = [name for name in registered_games() if not name.startswith(ELSEWHERE)]
# What one player gains in these, another need not lose.
OTHER_SUMS = {
    "tabletop/PrisonersDilemma-v0",
    "tabletop/Signals-v0",
    "tabletop/Deal-v0",
    "dialogue/Support-v0",
}
TALKING = {"tabletop/Deal-v0", "dialogue/Support-v0"}
ZERO_SUM = [name for name in GAMES if len(make_game(name).possible_agents) == 2 and name not in OTHER_SUMS]
ARRAYS_ONLY = re.compile(
    "Observation is not a NumPy array|space for each agent probably should be|recommend agents to be named"
)
HOSTILE = ["", " ", "\x00", "\ud800", "\u202e{}%s", "x" * 1_000_000, "1" * 1_000_000, "💥" * 300_000]


def environment_of(name):
    alone = len(make_game(name).possible_agents) == 1
    return name if alone else re.sub(r"(-v\d+)$", r"Vs\1", name)


def test_lists_the_games_of_our_packs():
    assert {"board/TicTacToe-v0", "board/Gomoku-v0", "games/Nim-v0", "games/GuessNumber-v0"} <= set(GAMES)


@pytest.mark.parametrize("name", GAMES)
def test_passes_checks_of_pettingzoo_and_gymnasium(name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        api_test(make_game(name), num_cycles=30)
        api_test(make_game(name, on_illegal="random"), num_cycles=30)
        seed_test(lambda: make_game(name, on_illegal="random"), num_cycles=30)
        if make_game(name).metadata["is_parallelizable"]:
            parallel_api_test(aec_to_parallel(make_game(name)), num_cycles=30)
        check_env(make(environment_of(name)).unwrapped)
    # What PettingZoo advises whenever a space is neither `Box` nor `Discrete`.
    assert not [str(w.message) for w in caught if not ARRAYS_ONLY.search(str(w.message))]


@pytest.mark.parametrize("name", GAMES)
def test_shows_each_observer_the_game_as_it_is(name):
    env = make_game(name, on_illegal="random").unwrapped
    env.reset(seed=3)
    for agent in env.agent_iter():
        *_, terminated, truncated, info = env.last()
        assert info.get("view") == env.game.view(env.possible_agents.index(agent))
        env.step(None if terminated or truncated else "none of the moves")


def test_leaves_info_of_earlier_turns_as_it_was():
    env = make_game("board/TicTacToe-v0")
    env.reset(seed=3)
    infos = []
    for move in ("a1", "b2", "c3"):
        infos.append(env.last()[-1])
        env.step(move)
    assert [info["view"]["last"] for info in infos] == [None, (0, 0), (1, 1)]


@pytest.mark.parametrize("name", GAMES)
def test_shows_who_plays_against_an_opponent_the_end(name):
    env = make(environment_of(name), on_illegal="random").unwrapped
    env.seat = "first"
    env.reset(seed=3)
    over = False
    while not over:
        *_, terminated, truncated, info = env.step("none of the moves")
        over = terminated or truncated
    assert info.get("view") == env.game.view(0)


@pytest.mark.parametrize("name", [name for name in GAMES if make_game(name).metadata["is_parallelizable"]])
def test_shows_all_players_each_round_in_parallel_play(name):
    env = make_game(name, on_illegal="random")
    game, env = env.unwrapped.game, aec_to_parallel(env)
    _, infos = env.reset(seed=3)
    while env.agents:
        for player, agent in enumerate(env.possible_agents):
            assert infos[agent].get("view") == game.view(player)
        *_, infos = env.step(dict.fromkeys(env.agents, "none of the moves"))


@pytest.mark.parametrize("name", ZERO_SUM)
def test_keeps_rules_in_random_play_with_matching_results(name):
    env = make_game(name)
    for seed in range(25):
        rng = np.random.default_rng([seed, 3])
        env.reset(seed=seed)
        earned, movers = dict.fromkeys(env.possible_agents, 0.0), []
        while not any((*env.terminations.values(), *env.truncations.values())):
            assert len(movers) < 1000
            movers.append(env.agent_selection)
            legal = env.legal_actions(env.agent_selection)
            assert len(set(legal)) == len(legal) > 0
            env.step(str(rng.choice(legal)))
            assert sum(env.rewards.values()) == 0.0
            for agent, reward in env.rewards.items():
                earned[agent] += reward
        assert all(env.terminations.values()) or all(env.truncations.values())
        # In poker a round of bets begins with whoever began the game, so nobody need alternate.
        assert "Leduc" in name or all(one != other for one, other in pairwise(movers))
        for agent, total in earned.items():
            result = {"won": total > 0, "drawn": total == 0, "lost": total < 0, "illegal_move": False}
            assert env.infos[agent]["metrics"] == {key: float(value) for key, value in result.items()}


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("on_illegal", ["lose", "random", "retry:2"])
def test_breaks_no_game_by_hostile_text(name, on_illegal):
    env = make(environment_of(name), on_illegal=on_illegal)
    for seed, text in enumerate(HOSTILE):
        env.reset(seed=seed)
        for _ in range(3):
            observation, reward, over, _, info = env.step(text)
            assert observation in env.observation_space
            assert len(observation) < 2_000
            assert np.isfinite(reward)
            if over:
                break
        if name in TALKING and len(text.split()) > 0 and len(text) < 400:
            continue  # said to the other player, whatever it is
        assert over or on_illegal == "random"
        counted = info["metrics"]["illegal_move" if on_illegal == "lose" else "illegal_moves"]
        assert counted == 1.0


@pytest.mark.parametrize("name", GAMES)
def test_leaves_the_global_generator_alone(name):
    np.random.seed(1)
    before = np.random.get_state()[1].tolist()
    env = make(environment_of(name))
    env.reset(seed=3)
    over = False
    while not over:
        over = any(env.step(env.unwrapped.legal_actions()[0])[2:4])
    assert np.random.get_state()[1].tolist() == before
