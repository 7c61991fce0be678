"""A parallel game can be used wherever a game with turns can."""

import pytest
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from tinkergym.errors import InvalidRequestError
from tinkergym.evaluation.crossplay import crossplay
from tinkergym.evaluation.matches import Player
from tinkergym.registration.games import make_game, register_aec
from tinkergym.spaces import Text
from tinkergym.wrappers import AgainstOpponent

GAME = "test/Parity-v0"


class Parity(ParallelEnv):
    """Whoever says the larger number wins a round that nobody else's number is shown in before."""

    metadata = {"name": "parity", "render_modes": []}  # noqa: RUF012 - PettingZoo's own way to say it
    render_mode = None
    possible_agents = ["a", "b", "c"]  # noqa: RUF012 - as above

    opponents = ("low", "high")

    def __init__(self, rounds=2):
        self.rounds = rounds

    def observation_space(self, agent):
        return spaces.Dict({"text": Text()})

    def action_space(self, agent):
        return Text()

    def reset(self, seed=None, options=None):
        self.agents, self.round = list(self.possible_agents), 0
        return {agent: {"text": "begin"} for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions):
        self.round += 1
        numbers = {agent: int(action) for agent, action in actions.items()}
        mean = sum(numbers.values()) / len(numbers)
        rewards = {agent: number - mean for agent, number in numbers.items()}
        over = dict.fromkeys(numbers, self.round == self.rounds)
        told = {agent: {"text": f"said: {sorted(numbers.items())}"} for agent in numbers}
        self.agents = [] if self.round == self.rounds else self.agents
        return told, rewards, over, dict.fromkeys(numbers, False), {agent: {} for agent in numbers}

    def check_opponent(self, name):
        if name not in ("low", "high"):
            raise InvalidRequestError(f"no {name}", field="opponent")

    def scripted_action(self, agent, name, rng):
        return "1" if name == "low" else "4"


@pytest.fixture(autouse=True)
def registered():
    register_aec(GAME, f"{__name__}:Parity")


def test_hides_rounds_moves_in_turns_of_registered_parallel_game():
    game = make_game(GAME, rounds=1)
    assert isinstance(game, AECEnv)
    game.reset(seed=0)
    shown = []
    for number, agent in enumerate(("a", "b", "c")):
        assert game.agent_selection == agent
        shown.append(game.last()[0]["text"])
        game.step(str(number))
    assert shown == ["begin"] * 3
    assert {agent: game.rewards[agent] for agent in "abc"} == {"a": -1.0, "b": 0.0, "c": 1.0}


def test_asks_no_rule_of_game_without_one_for_illegal_moves():
    with pytest.raises(InvalidRequestError) as refused:
        make_game(GAME, on_illegal="lose")
    assert refused.value.field == "on_illegal"


def test_pays_each_player_of_a_match_for_its_own_move():
    players = [Player(name=name, plays=name) for name in ("low", "high")]
    cell = crossplay(players, GAME, pairs=2).cell("high", "low")
    # One says 4 and two say 1, twice.
    assert (cell.games, cell.mean_return) == (6, 4.0)


def test_plays_one_seat_of_a_parallel_game_against_the_others():
    env = AgainstOpponent(Parity(), opponent="low", seat="first")
    observation, _ = env.reset(seed=1)
    assert "begin" in str(observation)
    total = 0.0
    for _ in range(2):
        observation, reward, terminated, _, _ = env.step("4")
        total += reward
    assert terminated
    assert total == 4.0
    assert "('b', 1)" in str(observation)
