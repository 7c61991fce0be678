import numpy as np
import pytest
from tinkergym_bandit.bandit import BanditEnv
from tinkergym_bandit.baselines import CHOICES, expected_return
from tinkergym_bandit.dialogues import dialogues
from tinkergym_bandit.machine import ARMS, payouts

from tinkergym.errors import EpisodeProtocolError, InvalidRequestError


def offered(observation):
    return observation.removeprefix("Pull: ").split()


@pytest.mark.parametrize("count", [2, 4, 8])
def test_offers_that_many_different_arms_in_an_episode(count):
    for seed in range(20):
        arms = offered(BanditEnv(count).reset(seed=seed)[0])
        assert len(set(arms)) == count
        assert set(arms) <= set(ARMS)


def test_pays_an_arm_as_often_as_its_machine_says():
    env = BanditEnv(offered=8, machine=3)
    for arm, probability in payouts(3).items():
        paid = []
        for seed in range(400):
            env.reset(seed=seed)
            paid.append(env.step(arm)[1])
        assert np.mean(paid) == pytest.approx(probability, abs=0.08)


def test_shares_luck_between_siblings_that_start_equal():
    env = BanditEnv(offered=8)
    by_payout = sorted(ARMS, key=payouts(0).__getitem__)
    for seed in range(50):
        earned = []
        for arm in by_payout:
            env.reset(seed=seed)
            earned.append(env.step(arm)[1])
        assert earned == sorted(earned)


def test_counts_the_best_offered_arm():
    env = BanditEnv()
    arms = offered(env.reset(seed=4)[0])
    best = max(arms, key=payouts(0).__getitem__)
    _, _, terminated, truncated, info = env.step(f" {best.upper()}\n")
    assert (terminated, truncated) == (True, False)
    assert info["metrics"] == {
        "best": 1.0,
        "payout": payouts(0)[best],
        "regret": 0.0,
        "illegal_move": 0.0,
    }


@pytest.mark.parametrize("action", ["", "purple", "red blue", pytest.param("🎰" * 99, id="long")])
def test_pays_nothing_for_unoffered_arm_and_counts_it(action):
    env = BanditEnv()
    env.reset(seed=0)
    observation, reward, terminated, _, info = env.step(action)
    assert (reward, terminated) == (0.0, True)
    assert info["metrics"].pop("regret") > 0
    assert info["metrics"] == {"best": 0.0, "payout": 0.0, "illegal_move": 1.0}
    assert observation in env.observation_space


def test_varies_paying_arms_between_machines_but_not_difficulty():
    tables = [payouts(machine) for machine in range(5)]
    assert len({tuple(table[arm] for arm in ARMS) for table in tables}) == 5
    assert {tuple(sorted(table.values())) for table in tables} == {tuple((2 * i + 1) / 16 for i in range(8))}


def test_rejects_a_second_answer():
    env = BanditEnv()
    env.reset(seed=0)
    env.step("red")
    with pytest.raises(EpisodeProtocolError):
        env.step("red")


@pytest.mark.parametrize(
    ("settings", "field"),
    [({"offered": 1}, "offered"), ({"offered": 9}, "offered"), ({"machine": -1}, "machine")],
)
def test_rejects_impossible_setting_by_name(settings, field):
    with pytest.raises(InvalidRequestError) as refused:
        BanditEnv(**settings)
    assert refused.value.field == field


def test_takes_baselines_from_the_page():
    figures = {name: round(expected_return(choice, 4), 3) for name, choice in CHOICES.items()}
    assert figures == {"random": 0.5, "one word": 0.688, "perfect": 0.838}


def test_pulls_an_offered_arm_in_dialogues():
    for asked, answered in dialogues(np.random.default_rng(0), 50):
        assert (asked["role"], answered["role"]) == ("user", "assistant")
        assert answered["content"] in offered(asked["content"])


def test_names_best_offered_arm_as_gold_and_offered_as_legal():
    env = BanditEnv(offered=3, machine=2)
    for seed in range(30):
        arms = offered(env.reset(seed=seed)[0])
        assert env.legal_actions() == arms
        assert env.step(env.gold_action())[4]["metrics"]["best"] == 1.0
