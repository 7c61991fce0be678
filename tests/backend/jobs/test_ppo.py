"""Whole jobs with PPO on the nano model: its value head learns with the policy and survives with it."""

import numpy as np
import pytest
from safetensors.torch import load_file

from backend.learner.learner import Learner
from tests.backend.jobs.replay import that_learn_the_same
from tinkergym.algorithms import GRPO, PPO
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import EnvironmentRef, FullParameters, LoRA, Sampling

BANDIT = {
    "environment": EnvironmentRef(id="bandit/Bandit-v0"),
    "sampling": Sampling(max_turn_tokens=4),
    "deterministic": True,
}
GAMES = {
    "environment": EnvironmentRef(id="board/TicTacToeVs-v0"),
    "deterministic": True,
    "steps": 3,
    "algorithm": PPO(groups_per_step=4, gamma=0.99, gae_lambda=0.9, updates_per_step=2, value_clip=0.2),
}
KINDS = pytest.mark.parametrize(
    "adapter",
    [
        pytest.param(LoRA(), id="lora"),
        pytest.param(FullParameters(), id="full", marks=pytest.mark.full("resumes as an adapter")),
    ],
)


def head(lab, job_id):
    folder = lab.folder(lab.events(job_id, "checkpoint")[-1])
    return {name: tensor.numpy() for name, tensor in load_file(folder / "value_head.safetensors").items()}


def test_learns_by_ppo_with_values_nearer_to_the_rewards(lab):
    algorithm = PPO(groups_per_step=32, learning_rate=2e-3, updates_per_step=2, value_clip=0.5)
    job_id = lab.start(**BANDIT, steps=10, algorithm=algorithm)
    lab.play_on(job_id)
    assert lab.state(job_id) is JobState.COMPLETED
    steps = lab.events(job_id, "step")
    assert len({lab.weights(job_id, step.policy_version) for step in steps}) == 10
    first, last = steps[0].metrics, steps[-1].metrics
    assert first["value_mean"] == 0.0
    assert last["value_loss"] < 0.75 * first["value_loss"]
    assert abs(last["value_mean"] - steps[-1].reward_mean) < 0.3
    assert {"explained_variance", "value_grad_norm", "value_clip_fraction"} <= last.keys()
    rewards = [step.reward_mean for step in steps]
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3])
    assert max(step.metrics["parity_max"] for step in steps) <= 1e-5


@KINDS
def test_resumes_with_bits_of_an_unbroken_job_including_value_head(lab, adapter):
    # Games of several turns; the third step begins with the values that the checkpoint of the second holds.
    smooth = lab.start(**GAMES, adapter=adapter)
    lab.play_on(smooth)
    broken = lab.start(**GAMES, adapter=adapter, checkpoint_every=1)
    lab.play_step(broken)
    lab.play_step(broken)
    lab.lease(broken)
    lab.replace_pool()
    lab.pool.start_job(broken)
    lab.play_on(broken)
    assert lab.service.job(broken).attempt == 2
    assert lab.weights(broken, 3) == lab.weights(smooth, 3)
    left, right = head(lab, broken), head(lab, smooth)
    assert left.keys() == right.keys()
    for name, values in left.items():
        assert values.any()
        np.testing.assert_array_equal(values, right[name])


@pytest.mark.full("loads a value head as a resumed job does")
def test_continues_with_policy_and_value_head_of_another_job(lab):
    settings = {**BANDIT, "steps": 2, "algorithm": PPO(groups_per_step=8)}
    first = lab.start(**settings)
    lab.play_on(first)
    second = lab.start(**settings, initial_policy=f"{first}@2")
    lab.play_on(second)
    assert lab.events(second, "step")[0].metrics["value_mean"] != 0.0
    other = lab.start(**{**settings, "algorithm": GRPO(group_size=4)}, initial_policy=f"{first}@2")
    lab.play_on(other)
    assert lab.state(other) is JobState.COMPLETED
    folder = lab.folder(lab.events(other, "checkpoint")[-1])
    assert not (folder / "value_head.safetensors").exists()
    # And from a job that had none, with a new one.
    third = lab.start(**settings, initial_policy=f"{other}@2")
    lab.play_on(third)
    assert lab.events(third, "step")[0].metrics["value_mean"] == 0.0


def test_schedules_rate_of_value_head_as_the_policys(lab, monkeypatch):
    asked, optim_step = [], Learner.optim_step

    def noted(self, policy_id, *, learning_rate, value_learning_rate, **settings):
        asked.append((learning_rate, value_learning_rate))
        return optim_step(
            self, policy_id, learning_rate=learning_rate, value_learning_rate=value_learning_rate, **settings
        )

    monkeypatch.setattr(Learner, "optim_step", noted)
    algorithm = PPO(
        groups_per_step=2, learning_rate=0.1, value_learning_rate=0.8, lr_schedule="linear", warmup_steps=1
    )
    job_id = lab.start(**BANDIT, steps=5, algorithm=algorithm)
    lab.play_on(job_id)
    assert lab.state(job_id) is JobState.COMPLETED
    factors = [0.5, 1.0, 0.75, 0.5, 0.25]
    assert [rate for rate, _ in asked] == pytest.approx([0.1 * factor for factor in factors])
    assert [rate for _, rate in asked] == pytest.approx([0.8 * factor for factor in factors])


def test_changes_what_is_learned_by_every_setting_of_ppo(lab, monkeypatch):
    plain = {"groups_per_step": 6, "learning_rate": 1e-2, "updates_per_step": 2}
    settings = [
        {},
        {"gamma": 0.5},
        {"gae_lambda": 0.5},
        {"whiten_advantages": False},
        {"value_coefficient": 1.0},
        {"value_clip": 0.01},
        {"value_learning_rate": 0.5},
        {"clip_low": 0.01},
        {"clip_high": 0.01},
        {"kl_coefficient": 0.1},
        {"kl_coefficient": 0.1, "kl_in": "reward"},
        {"mask_truncated": True},
        {"lr_schedule": "linear"},
    ]
    others = [{"algorithm": PPO(**plain | some)} for some in settings]
    others.append({"shuffle_rewards": True})
    assert that_learn_the_same(lab, monkeypatch, {"algorithm": PPO(**plain)}, others) == []


def test_changes_what_is_learned_by_groups_of_ppo(lab):
    plain = {"groups_per_step": 6, "learning_rate": 1e-2}
    groups = [plain, {**plain, "group_size": 2, "groups_per_step": 3}]
    assert lab.that_learn_the_same([{"algorithm": PPO(**some)} for some in groups]) == []
