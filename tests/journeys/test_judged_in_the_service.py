"""Rewards that a worker of the service computes: by a judge that it asks, and over the whole of a group."""

from __future__ import annotations

import pytest

import tinkergym as tg
from tests.journeys import packs
from tests.tinkergym.rubrics.test_llm_judge import KEY

pytestmark = pytest.mark.service

SETTINGS = {
    "steps": 2,
    "algorithm": tg.GRPO(group_size=4, groups_per_step=2),
    "sampling": tg.Sampling(max_turn_tokens=6, temperature=2.0),
}


def test_loses_episode_whose_judge_gives_no_score(client, judge):
    judge.answers = ["0.25", "nonsense", "0.75"]
    settings = {"url": judge.url, "model": "small", "api_key": KEY, "pause_seconds": 0.0, "attempts": 1}
    job = client.train("judged/Judged-v0", env_kwargs={"judge": settings}, **SETTINGS)
    job.wait(warn=False)
    rewards = sorted(one.reward for one in job.episodes(last_step=1) if one.completed)
    assert rewards == [0.25, *[0.5] * 5, 0.75]
    (lost,) = job.episodes(last_step=1).filter(completed=False)
    assert lost.trajectory.stop_reason == "invalid_reward"
    assert {authorization for _, authorization, _ in judge.asked} == {f"Bearer {KEY}"}
    shown = job.spec.model_dump_json() + "".join(event.model_dump_json() for event in job.log())
    assert KEY not in shown


def test_pays_episodes_of_a_group_together_by_a_pack(client):
    job = client.train("judged/Longest-v0", **SETTINGS)
    job.wait(warn=False)
    assert job.spec.group_rewards
    groups = job.episodes().groups
    assert len(groups) == 4
    for members in groups.values():
        most = max(len(one.answers[-1]) for one in members)
        assert [one.reward for one in members] == [float(len(one.answers[-1]) == most) for one in members]
        assert all(one.metrics["of"] == 4.0 for one in members)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        (
            {"algorithm": tg.algorithms.ReinforcePlusPlus(group_size=1, groups_per_step=4)},
            "algorithm.group_size",
        ),
        ({"deterministic": True}, "deterministic"),
    ],
)
def test_rejects_what_cannot_go_with_groups_paid_together(client, changed, field):
    with pytest.raises(tg.errors.InvalidRequestError) as refused:
        client.train("judged/Longest-v0", **{**SETTINGS, **changed})
    assert refused.value.field == field


def test_pays_by_groups_for_class_of_client_too(client):
    names = {}
    exec(packs.JUDGED, names)
    job = client.train(names["Longest"], **SETTINGS)
    job.wait(warn=False)
    assert job.spec.group_rewards
    assert {one.metrics["of"] for one in job.episodes()} == {4.0}
    with pytest.raises(tg.errors.InvalidEnvironmentError):
        tg.wrappers.TrainRemotely(names["Longest"](), client=client, steps=1)
