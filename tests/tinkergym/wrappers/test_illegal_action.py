import gymnasium as gym
import numpy as np
import pytest

import tinkergym as tg
from tinkergym.errors import EpisodeProtocolError, InvalidRequestError
from tinkergym.spaces import Text
from tinkergym.wrappers import IllegalAction


class Doors(tg.TextEnv):
    """Two doors, three rooms; what is no door raises."""

    def start(self, options):
        self.room = 0
        self.luck = float(self.np_random.random())
        return "Left or right?"

    def reply(self, action):
        assert action.strip().lower() in ("left", "right")
        self.room += 1
        return (
            f"Room {self.room}. {self.np_random.random():.6f}",
            0.0,
            self.room == 3,
            {"metrics": {"room": 1.0}},
        )

    def legal_actions(self):
        return ["left", "right"]


class Shy(Doors):
    """Does not say what is legal."""

    def legal_actions(self):
        return None

    def reply(self, action):
        return "Hm.", 0.0, True


class InDict(gym.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gym.spaces.Dict({"text": Text(), "other": gym.spaces.Discrete(3)})

    def observation(self, observation):
        return {"text": observation, "other": 1}


def test_passes_legal_action_and_counts_nothing():
    env = IllegalAction(Doors())
    env.reset(seed=0)
    observation, reward, over, truncated, info = env.step(" LEFT\n")
    assert observation.startswith("Room 1.")
    assert (reward, over, truncated) == (0.0, False, False)
    assert info == {"metrics": {"room": 1.0, "illegal_moves": 0.0}}


def test_retries_illegal_action_and_then_loses():
    env = IllegalAction(Doors(), on_illegal="retry:2")
    env.reset(seed=0)
    assert env.step("up")[0] == "Illegal move: 'up'. Try again."
    told, reward, over, _, info = env.step("down")
    assert (told, reward, over) == ("Illegal move: 'down'. Try again, for the last time.", 0.0, False)
    assert info == {"metrics": {"illegal_moves": 1.0}}
    env.step("left")
    # A new turn, new tries.
    env.step("up")
    env.step("up")
    told, reward, over, truncated, info = env.step("up")
    assert (told, reward, over, truncated) == ("Illegal move: 'up'. You lose.", -1.0, True, False)
    assert info == {"metrics": {"illegal_moves": 1.0, "illegal_move": 1.0}}
    with pytest.raises(EpisodeProtocolError):
        env.step("left")
    env.reset(seed=0)
    assert env.step("left")[2] is False


def test_loses_immediately_by_illegal_action_at_the_declared_cost():
    env = IllegalAction(Doors(), on_illegal="lose", reward=-0.25)
    env.reset(seed=0)
    assert env.step("up")[1:3] == (-0.25, True)


def test_replaces_illegal_action_by_a_random_legal_one():
    env, played = IllegalAction(Doors(), on_illegal="random"), set()
    for seed in range(20):
        env.reset(seed=seed)
        told, _, over, _, info = env.step("up")
        note, rest = told.split("\n")
        assert rest.startswith("Room 1.")
        assert (over, info["metrics"]["illegal_moves"]) == (False, 1.0)
        played.add(note)
    assert played == {f"Illegal move: 'up'. {door} was played instead." for door in ("left", "right")}


def test_follows_seed_in_random_actions_without_the_environments_chance():
    def rooms(env, *actions):
        env.reset(seed=7)
        return [env.step(action)[0].splitlines()[-1] for action in actions]

    plain = rooms(Doors(), "left", "left", "left")
    assert rooms(IllegalAction(Doors(), on_illegal="random"), "up", "left", "up") == plain
    one, other = (IllegalAction(Doors(), on_illegal="random") for _ in range(2))
    other.reset(seed=99)
    assert [one.reset(seed=7), one.step("?"), one.step("?")] == [
        other.reset(seed=7),
        other.step("?"),
        other.step("?"),
    ]


def test_passes_action_where_legal_ones_are_unknown():
    env = IllegalAction(Shy(), on_illegal="lose")
    env.reset(seed=0)
    assert env.step("anything")[0] == "Hm."


def test_keeps_form_of_observations():
    env = IllegalAction(InDict(Doors()), on_illegal="retry:1")
    env.reset(seed=0)
    told = env.step("up")[0]
    assert told == {"text": "Illegal move: 'up'. Try again, for the last time.", "other": 1}
    assert told in env.observation_space


@pytest.mark.parametrize(
    ("env", "setting", "field"),
    [(Doors, "forgive", "on_illegal"), (lambda: gym.make("CartPole-v1"), "lose", "environment")],
)
def test_rejects_by_name_what_cannot_work(env, setting, field):
    with pytest.raises(InvalidRequestError) as refused:
        IllegalAction(env(), on_illegal=setting)
    assert refused.value.field == field


@pytest.mark.parametrize("action", ["x" * 1_000_000, "\ud800", "", "\x00"])
@pytest.mark.parametrize("rule", ["lose", "random", "retry:1"])
def test_answers_hostile_text_with_a_short_observation(action, rule):
    env = IllegalAction(tg.make("board/TicTacToeVs-v0"), on_illegal=rule)
    env.reset(seed=0)
    observation = env.step(action)[0]
    assert len(observation) < 200
    assert observation in env.observation_space


def test_records_itself_in_the_spec_and_is_rebuilt():
    made = IllegalAction(tg.make("board/TicTacToeVs-v0"), on_illegal="random")
    again = gym.make(made.spec)
    assert again.reset(seed=1) == made.reset(seed=1)
    assert again.step("zz") == made.step("zz")
    assert np.isfinite(again.step("b2")[1])
