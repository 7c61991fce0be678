import pickle
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv
from pettingzoo import AECEnv
from pettingzoo.utils.wrappers import OrderEnforcingWrapper

import tinkergym as tg
from tinkergym.errors import EpisodeProtocolError, InvalidEnvironmentError, InvalidRequestError
from tinkergym.games.game_env import GameEnv
from tinkergym.spaces import Text
from tinkergym.testing import EnvContract
from tinkergym.wrappers import AgainstOpponent


class Subtract(tg.TextGame):
    """Take 1 or 2 from a heap that the seed draws; who takes the last wins."""

    players = ("Anna", "Ben")
    opponents = ("random", "greedy")

    def begin(self, rng):
        self.left = int(rng.integers(5, 12))

    def observe(self, player):
        return f"{self.left} left."

    def legal(self, player):
        return ["1", "2"][: self.left]

    def play(self, player, move):
        self.left -= int(move)
        return 1.0 if self.left == 0 else None

    def greedy(self, player, rng):
        return self.legal(player)[-1]

    def gold(self, player):
        return str(self.left % 3 or 1)


class Quarrel(tg.TextGame):
    """Three say a number; the lowest of the three wins what the others lose."""

    players = 3

    def begin(self, rng):
        self.said = []

    def legal(self, player):
        return ["1", "2", "3"]

    def play(self, player, move):
        self.said.append(int(move))
        if len(self.said) < 3:
            return None
        low = self.said.index(min(self.said))
        return [2.0 if player == low else -1.0 for player in range(3)]


class Chain(AECEnv):
    """Written by hand for PettingZoo: each in turn says a word that nobody has said.

    Who says a word twice drops out with -1; the one who is left earns 1. After nine words all are stopped.
    """

    metadata = {"name": "chain", "render_modes": []}  # noqa: RUF012

    def __init__(self, count=2):
        self.possible_agents = [f"speaker_{i}" for i in range(count)]
        self.render_mode = None
        self._space = spaces.Dict({"text": Text()})
        self._action_space = Text()

    def observation_space(self, agent):
        return self._space

    def action_space(self, agent):
        return self._action_space

    def reset(self, seed=None, options=None):
        self.agents = self.possible_agents[:]
        for name in ("rewards", "_cumulative_rewards"):
            setattr(self, name, dict.fromkeys(self.agents, 0))
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {"words": 0} for agent in self.agents}
        self.said = []
        self.agent_selection = self.agents[0]

    def observe(self, agent):
        return {"text": self.said[-1] if self.said else "Begin."}

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            order = self.agents[self.agents.index(agent) + 1 :] + self.agents[: self.agents.index(agent)]
            self._was_dead_step(action)
            self.agent_selection = order[0] if order else agent
            return
        self._cumulative_rewards[agent] = 0
        self._clear_rewards()
        if action in self.said:
            self.terminations[agent] = True
            self.rewards[agent] = -1
            left = [name for name in self.agents if not self.terminations[name]]
            if len(left) == 1:
                self.terminations[left[0]] = True
                self.rewards[left[0]] = 1
        self.said.append(action)
        self.infos[agent]["words"] += 1
        if len(self.said) == 9:
            self.truncations = dict.fromkeys(self.agents, True)
        self.agent_selection = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
        self._accumulate_rewards()


class Scripted:
    """Answers from a list and remembers what it was shown."""

    def __init__(self, *answers):
        self.answers, self.shown, self.seeds = list(answers), [], []

    def reset(self, seed):
        self.seeds.append(seed)

    def act(self, observation):
        self.shown.append(observation)
        return self.answers[min(len(self.shown), len(self.answers)) - 1]


def against(opponent="random", seat="seed", game=Subtract, on_illegal=None):
    return AgainstOpponent(GameEnv(game(), on_illegal=on_illegal), opponent=opponent, seat=seat)


def play(env, seed):
    rng = np.random.default_rng([seed, 1])
    seen, over = [env.reset(seed=seed)], False
    while not over:
        seen.append(env.step(str(rng.choice(env.legal_actions()))))
        over = seen[-1][2]
    return seen


class TestSubtract(EnvContract):
    def make(self):
        return against()

    def actions(self, seed):
        return ["1"] * 12


@pytest.mark.parametrize(
    "settings",
    [{}, {"opponent": "greedy"}, {"seat": "second"}, {"game": Quarrel}, {"on_illegal": "retry:2"}],
)
def test_passes_gymnasiums_check_without_a_warning(settings):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(against(**settings), skip_render_check=True)


@pytest.mark.parametrize("opponent", ["random", "greedy"])
def test_gives_same_episode_by_same_seed_and_moves(opponent):
    one, other = against(opponent), against(opponent)
    for seed in range(30):
        play(other, seed + 1000)  # what was played before must not matter
        assert play(one, seed) == play(other, seed)


def test_chooses_or_draws_the_seat():
    def seats(seat):
        env = against(seat=seat)
        return [env.reset(seed=seed)[0].splitlines()[0] for seed in range(60)]

    assert set(seats("first")) == {"You are Anna."}
    assert set(seats("second")) == {"You are Ben."}
    assert 15 < seats("seed").count("You are Anna.") < 45


def test_keeps_chance_of_game_whoever_sits_where():
    heaps = {seat: [] for seat in ("first", "seed")}
    for seat, found in heaps.items():
        env = against(Scripted("1"), seat)
        for seed in range(30):
            env.reset(seed=seed)
            found.append(env.game.left + (1 if env._agent == "player_1" else 0))
    assert heaps["first"] == heaps["seed"]
    assert len(set(heaps["first"])) > 3


def test_shows_opponent_what_an_agent_in_its_seat_sees():
    opponent = Scripted("1")
    env = against(opponent, "second")
    observation, _ = env.reset(seed=3)
    left = int(observation.splitlines()[1].split()[0])
    env.step("1")
    assert opponent.shown == [f"You are Anna.\n{left + 1} left.", f"{left - 1} left."]


def test_tells_opponent_when_episode_begins_by_its_own_seed():
    opponent = Scripted("1")
    env = against(opponent)
    for seed in (1, 2, 1):
        env.reset(seed=seed)
    first, second, again = opponent.seeds
    assert first == again != second


def test_plays_all_others_in_a_game_of_three():
    env = against("random", "second", Quarrel)
    rewards = set()
    for seed in range(40):
        env.reset(seed=seed)
        _, reward, over, truncated, info = env.step("2")
        assert (over, truncated) == (True, False)
        assert info["metrics"]["won"] == float(reward > 0)
        rewards.add(reward)
    assert rewards == {2.0, -1.0}


def test_wins_when_an_opponent_moves_illegally():
    env = against(Scripted("1", "nonsense"), "second")
    env.reset(seed=3)
    observation, reward, over, _, info = env.step("1")
    assert (reward, over) == (1.0, True)
    assert "Illegal move by Anna. You win." in observation
    assert info["metrics"]["illegal_move"] == 0.0


def test_raises_on_opponent_that_never_moves_legally():
    with pytest.raises(InvalidEnvironmentError) as caught:
        against(Scripted("nonsense"), "second").reset(seed=0)
    assert caught.value.field == "opponent"


def test_counts_illegal_moves_in_each_step():
    env = against("greedy", "first", on_illegal="retry:2")
    env.reset(seed=0)
    observation, reward, over, _, info = env.step("seven")
    assert (reward, over, info) == (0.0, False, {"metrics": {"illegal_moves": 1.0}})
    assert observation == "Illegal move: 'seven' is not one of 1, 2. Try again."
    assert env.step("1")[4] == {"metrics": {"illegal_moves": 0.0}}


def test_beats_random_by_gold_and_never_loses_won_positions():
    env, won = against("random"), []
    for seed in range(100):
        env.reset(seed=seed)
        lead, over = env.game.left % 3 != 0, False
        while not over:
            _, reward, over, _, _ = env.step(env.gold_action())
        assert reward == 1.0 or not lead
        won.append(reward == 1.0)
    assert sum(won) > 85


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"opponent": "grandmaster"}, "opponent"),
        ({"opponent": 7}, "opponent"),
        ({"seat": "third"}, "seat"),
    ],
)
def test_rejects_setting_that_makes_no_environment_by_name(settings, field):
    with pytest.raises(InvalidRequestError) as refused:
        against(**settings)
    assert refused.value.field == field


def test_rejects_step_without_a_running_game():
    env = against()
    with pytest.raises(EpisodeProtocolError):
        env.step("1")
    env.reset(seed=0)
    env.step("nonsense")
    with pytest.raises(EpisodeProtocolError):
        env.step("1")


def test_gives_caller_what_is_returned():
    env = against("greedy", "first", on_illegal="retry:2")
    env.reset(seed=0)
    env.step("x")[4]["metrics"].clear()
    assert env.aec_env.infos["player_0"] == {"metrics": {"illegal_moves": 1.0}}


def test_copies_running_game_to_another_process():
    env = against()
    env.reset(seed=3)
    copy = pickle.loads(pickle.dumps(env))
    assert copy.step("1") == env.step("1")
    assert play(copy, 4) == play(env, 4)


def test_records_settings_in_spec_that_rebuilds_the_environment():
    tg.make("games/Nim-v0".replace("Nim", "NimVs"))  # loads the packs
    made = gym.make("games/NimVs-v0", opponent="perfect", seat="second", on_illegal="retry:3")
    assert made.spec.kwargs["on_illegal"] == "retry:3"
    again = gym.make(gym.envs.registration.EnvSpec.from_json(made.spec.to_json()))
    assert again.unwrapped.metadata["on_illegal"] == "retry:3"
    assert again.reset(seed=5) == made.reset(seed=5)


@pytest.mark.parametrize("wrong", ["Perfect", "perfekt"])
def test_suggests_nearest_and_all_for_misspelt_opponent(wrong):
    with pytest.raises(InvalidRequestError) as error:
        tg.make("games/NimVs-v0", opponent=wrong)
    assert error.value.field == "opponent"


def test_plays_in_processes():
    tg.make("games/NimVs-v0")
    envs = AsyncVectorEnv([lambda: gym.make("games/NimVs-v0") for _ in range(2)], shared_memory=False)
    try:
        observations, _ = envs.reset(seed=5)
        assert list(observations) == [tg.make("games/NimVs-v0").reset(seed=5 + i)[0] for i in range(2)]
    finally:
        envs.close()


@pytest.mark.parametrize("answer", ["1", "x" * 1_000_000, "\ud800", "\x00", "1" * 1_000_000, " " * 1_000_000])
@pytest.mark.parametrize("on_illegal", ["lose", "random", "retry:1"])
def test_answers_hostile_text_with_a_short_observation(answer, on_illegal):
    env = against(on_illegal=on_illegal)
    env.reset(seed=0)
    observation, _, _, _, _ = env.step(answer)
    assert len(observation) < 300
    assert observation in env.observation_space


def test_plays_hand_written_pettingzoo_game_too():
    env = AgainstOpponent(Chain(), opponent=Scripted("tree", "eel"), seat="second")
    assert env.reset(seed=0) == ("tree", {"words": 0})
    assert env.observation_space == Text()
    assert env.step("egg") == ("eel", 0.0, False, False, {"words": 1})
    assert env.step("tree") == ("tree", -1.0, True, False, {"words": 2})
    assert env.legal_actions() is None
    assert env.gold_action() is None
    assert (env.metadata["turns"], env.metadata["data"]) == ("multi", "free")


def test_truncates_when_a_game_is_cut_off():
    env = AgainstOpponent(Chain(), opponent=Scripted("a", "b", "c", "d", "e"), seat="second")
    env.reset(seed=0)
    steps = [env.step(word) for word in "ghij"]
    assert [step[2:4] for step in steps] == [(False, False)] * 3 + [(False, True)]


def test_skips_those_who_drop_out_of_a_larger_game():
    env = AgainstOpponent(Chain(3), opponent=Scripted("a", "a", "b", "c"), seat="first")
    env.reset(seed=0)
    # Second says a, third says it again and drops out.
    assert env.step("x")[1:4] == (0.0, False, False)
    assert env.step("y")[1:4] == (0.0, False, False)
    assert len(env.aec_env.agents) == 2
    assert env.step("x")[1:4] == (-1.0, True, False)


def test_works_within_pettingzoos_wrappers():
    env = AgainstOpponent(OrderEnforcingWrapper(GameEnv(Subtract())), opponent="greedy")
    plain = against("greedy")
    for seed in range(10):
        assert play(env, seed) == play(plain, seed)


def test_requires_acting_opponent_of_game_without_named_ones():
    with pytest.raises(InvalidRequestError) as caught:
        AgainstOpponent(Chain())
    assert caught.value.field == "opponent"
