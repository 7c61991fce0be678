import math

import gymnasium as gym
import pytest

import tinkergym as tg
from tinkergym.errors import EpisodeProtocolError, InvalidRequestError, InvalidRewardError
from tinkergym.wrappers import RewardTerms


class Echo(tg.TextEnv):
    def start(self, options):
        return "say"

    def reply(self, action):
        return action, 1.0, action == "end", {"metrics": {"own": 2.0}}


def repeats(observation, action, next_observation):
    assert next_observation == action
    return observation == action


def never(action):
    return math.nan


def stepped(env, *actions):
    env.reset(seed=0)
    return [env.step(action) for action in actions]


def test_adds_terms_with_their_weights_and_logs_them():
    env = RewardTerms(Echo(), {"repeats": repeats}, {"repeats": -0.5, "action_characters": 0.1, "step": 0})
    first, second = stepped(env, "yes", "yes")
    assert first[1] == pytest.approx(1.3)
    assert second[1] == pytest.approx(0.8)
    assert second[4]["metrics"] == {
        "own": 2.0,
        "reward/environment": 1.0,
        "reward/repeats": 1.0,
        "reward/action_characters": 3.0,
        "reward/step": 1.0,
    }


def test_only_logs_term_without_a_weight():
    (step,) = stepped(RewardTerms(Echo(), {"repeats": repeats}), "say")
    assert step[1] == 1.0
    assert step[4]["metrics"]["reward/repeats"] == 1.0


def test_keeps_environments_own_reward_under_two_wrappers():
    env = RewardTerms(RewardTerms(Echo(), weights={"step": 1}), weights={"action_characters": 1})
    (step,) = stepped(env, "abc")
    assert step[1] == 5.0
    assert step[4]["metrics"]["reward/environment"] == 1.0


def test_invalidates_reward_by_term_that_gives_no_number():
    with pytest.raises(InvalidRewardError):
        stepped(RewardTerms(Echo(), {"never": never}), "x")


@pytest.mark.parametrize(
    ("terms", "weights"),
    [
        (None, None),
        (None, {"politeness": 1.0}),
        ({"x": "nowhere:x"}, None),
        ({"environment": repeats}, None),
        ({"x": lambda *facts: 1}, None),
    ],
)
def test_rejects_settings_that_cannot_work(terms, weights):
    with pytest.raises(InvalidRequestError):
        RewardTerms(Echo(), terms, weights)


def test_records_it_in_spec_and_makes_it_from_there():
    tg.register("terms/Echo-v0", f"{__name__}:Echo")
    env = RewardTerms(tg.make("terms/Echo-v0"), {"repeats": f"{__name__}:repeats"}, {"repeats": 2.0})
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    (step,) = stepped(again, "say")
    assert step[1] == 3.0


def test_rejects_step_before_reset():
    with pytest.raises(EpisodeProtocolError):
        RewardTerms(Echo(), weights={"step": 1}).step("x")


def test_averages_the_metrics_of_terms_that_ask_for_it():
    env = RewardTerms(Echo(), weights={"step": -0.5}, average=["step"])
    ((_, reward, _, _, info),) = stepped(env, "yes")
    assert (reward, info["metrics"]["mean/reward/step"]) == (0.5, 1.0)
    with pytest.raises(InvalidRequestError):
        RewardTerms(Echo(), weights={"step": -0.5}, average=["steps"])
