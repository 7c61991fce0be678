"""Jobs in which seats are played by somebody that is not trained."""

from __future__ import annotations

import pytest

from tinkergym.schema.algorithms import GRPO
from tinkergym.schema.events import JobState
from tinkergym.schema.job_spec import EnvironmentRef, Sampling, SharedWith, Train
from tinkergym.schema.opponents import Base, League, Scripted

GAME = {
    # Illegal moves, of which there are many, do not end the game.
    "environment": EnvironmentRef(id="board/TicTacToe-v0", kwargs={"on_illegal": "random"}),
    "algorithm": GRPO(group_size=2, groups_per_step=4),
    "sampling": Sampling(max_turn_tokens=4, temperature=3.0),
}


@pytest.mark.parametrize("opponent", [Scripted("heuristic"), Base()], ids=["heuristic", "base"])
def test_a_policy_learns_against_somebody_who_is_not_trained(lab, opponent):
    job_id = lab.start(**GAME, agents={"x": Train(), "o": opponent}, steps=2)
    lab.play_on(job_id)
    assert lab.state(job_id) is JobState.COMPLETED
    assert lab.service.policies_of(job_id).keys() == {"x"}
    for step in lab.events(job_id, "step"):
        assert step.failed_episodes == 0
        assert step.metrics["policy/x/trained_tokens"] <= step.sampled_tokens
        assert step.reward_mean is not None
    assert all(event.agent == "x" for event in lab.events(job_id, "episode"))


def test_a_policy_plays_itself_its_past_and_anchors_and_an_interrupted_job_draws_the_same(lab):
    league = League(anchors=[Scripted("random")], snapshot_every=1, past="prioritized", current_share=0.3)
    settings = {**GAME, "agents": {"x": Train(), "o": SharedWith("x")}, "self_play": league}
    job_id = lab.start(**settings, steps=4, keep_checkpoints=1)
    seen = [lab.play_step(job_id) for _ in range(3)]
    lab.replace_pool()
    lab.pool.start_job(job_id)
    lab.play_on(job_id)
    assert lab.state(job_id) is JobState.COMPLETED
    assert all(step.failed_episodes == 0 for step in lab.events(job_id, "step"))
    players = {seat.player for step in seen for request in step for seat in request.seats.values()}
    assert {"trained", "random", "past@0", "past@1"} == players
    # Snapshots stay as opponents beyond `keep_checkpoints`.
    assert [view.step for view in lab.service.checkpoints(job_id, "x")] == [1, 2, 3, 4]
