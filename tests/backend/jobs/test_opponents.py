"""Jobs in which seats are played by somebody that is not trained."""

from __future__ import annotations

import pytest

from backend.admission.frozen_opponents import with_definite_opponents
from backend.store.kept_episodes import KeptEpisodes
from tinkergym.algorithms import GRPO, RunningBaseline
from tinkergym.datasets.stored_episodes import stored_episodes
from tinkergym.schema.evaluate_every import EvaluateEvery
from tinkergym.schema.events import JobState
from tinkergym.schema.fixed_players import Base, Frozen, League, Replay, Scripted
from tinkergym.schema.jobs.parts import EnvironmentRef, Sampling
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import SharedWith, Train

GAME = {
    # Illegal moves, of which there are many, do not end the game.
    "environment": EnvironmentRef(id="board/TicTacToe-v0", kwargs={"on_illegal": "random"}),
    "algorithm": GRPO(group_size=2, groups_per_step=2),
    "sampling": Sampling(max_turn_tokens=4, temperature=3.0),
}
MORE = {**GAME, "algorithm": GRPO(group_size=2, groups_per_step=4)}
TWO = {"x": Train(), "o": Train(algorithm=GRPO(learning_rate=1e-2))}


def hashes(lab, job_id, version):
    trained = lab.service.policies_of(job_id)
    return {agent: lab.service.version_sha256(job_id, version, agent) for agent in trained}


@pytest.mark.parametrize("opponent", [Scripted("heuristic"), Base()], ids=["heuristic", "base"])
def test_learns_against_somebody_who_is_not_trained(lab, opponent):
    job_id = lab.start(**GAME, agents={"x": Train(), "o": opponent}, steps=2)
    lab.play_on(job_id)
    assert lab.state(job_id) is JobState.COMPLETED
    assert lab.service.policies_of(job_id).keys() == {"x"}
    for step in lab.events(job_id, "step"):
        assert step.failed_episodes == 0
        assert step.metrics["policy/x/trained_tokens"] <= step.sampled_tokens
        assert step.reward_mean is not None
    assert all(event.agent == "x" for event in lab.events(job_id, "episode"))


def test_plays_itself_its_past_and_anchors_alike_when_interrupted(jobs):
    league = League(anchors=[Scripted("random")], snapshot_every=1, past="prioritized", current_share=0.3)
    settings = {**MORE, "agents": {"x": Train(), "o": SharedWith("x")}, "self_play": league}
    job_id = jobs.start(**settings, steps=4, keep_checkpoints=1)
    seen = [jobs.play_step(job_id) for _ in range(3)]
    jobs.take_over(job_id)
    jobs.play_on(job_id)
    assert jobs.state(job_id) is JobState.COMPLETED
    assert all(step.failed_episodes == 0 for step in jobs.events(job_id, "step"))
    players = {seat.player for step in seen for request in step for seat in request.seats.values()}
    assert {"trained", "random", "past@0", "past@1"} == players
    # A past version's games were stored too, but are not the policy's own.
    kept = KeptEpisodes(jobs.config.job_files.below(job_id))
    stored = jobs.tenant.stored_episodes(job_id, kept, first_step=1, last_step=3)
    own = stored_episodes(jobs.tenant.get_job(job_id).spec, stored, origin=job_id)
    assert {(one.episode_id, one.agent) for one in own} == {
        (request.episode_id, agent)
        for step in seen
        for request in step
        for agent, seat in request.seats.items()
        if seat.trained
    }
    # Snapshots stay as opponents beyond `keep_checkpoints`.
    assert [view.step for view in jobs.service.checkpoints(job_id, "x")] == [1, 2, 3, 4]


def test_keeps_bits_of_two_deterministic_policies_through_a_kill(jobs):
    settings = {**GAME, "agents": TWO, "deterministic": True, "steps": 2, "checkpoint_every": 1}
    undisturbed, killed = jobs.start(**settings), None
    jobs.play_on(undisturbed)
    killed = jobs.start(**settings)
    jobs.play_step(killed)
    jobs.take_over(killed)
    jobs.play_on(killed)
    for version in (1, 2):
        assert hashes(jobs, killed, version) == hashes(jobs, undisturbed, version)
    assert None not in hashes(jobs, killed, 2).values()


def test_trains_policies_in_turn_with_evaluations_from_what_was_trained(jobs):
    against = EvaluateEvery(1, episodes=4, agent="o", against=Scripted("heuristic"))
    baseline = RunningBaseline(group_size=2, groups_per_step=4)
    agents = {"x": Train(algorithm=baseline), "o": Train()}
    job_id = jobs.start(**MORE, agents=agents, updates="alternate", evaluate=against, steps=2)
    jobs.play_on(job_id)
    assert jobs.state(job_id) is JobState.COMPLETED
    first, second = (hashes(jobs, job_id, version) for version in (1, 2))
    assert first["o"] != second["o"]
    assert first["x"] == second["x"]
    assert [(event.step, event.failed_episodes) for event in jobs.events(job_id, "evaluation")] == [
        (step, 0) for step in range(3)
    ]
    step = jobs.events(job_id, "step")[0]
    assert "policy/x/baseline_mean" in step.metrics
    assert "policy/o/trained_tokens" not in step.metrics
    begun = {"x": Train(initial_policy=f"{job_id}/x@2"), "o": Base()}
    again = jobs.start(**GAME, agents=begun, steps=1)
    jobs.play_on(again)
    assert jobs.state(again) is JobState.COMPLETED


def test_plays_frozen_policy_to_the_end_as_it_was_trained(lab):
    own = Sampling(max_turn_tokens=3, temperature=2.0)
    trained = {"x": Train(), "o": Train(sampling=own, system_prompt="Answer with a square.")}
    theirs = lab.start(**GAME, agents=trained, steps=1)
    lab.play_on(theirs)
    wanted = {**GAME, "agents": {"x": Train(), "o": Frozen(f"{theirs}/o")}, "steps": 2}
    admitted = with_definite_opponents(lab.tenant, RLSpec(**wanted))
    assert admitted.agents["o"].policy == f"{theirs}/o@1"
    job_id = lab.start(**{**wanted, "agents": admitted.agents})
    seats = [request.seats["o"] for request in lab.play_step(job_id)]
    assert {(seat.policy, seat.policy_version, seat.trained) for seat in seats} == {
        (f"{theirs}/o@1", 1, False)
    }
    assert {(seat.sampling, seat.system_prompt) for seat in seats} == {(own, "Answer with a square.")}
    lab.play_on(job_id)
    assert lab.state(job_id) is JobState.COMPLETED
    steps = lab.events(job_id, "step")
    assert [step.failed_episodes for step in steps] == [0, 0]
    assert all(step.reward_mean is not None for step in steps)


def test_plays_ahead_by_each_policys_versions_within_the_bound(jobs):
    job_id = jobs.start(**GAME, agents=TWO, max_staleness=1, steps=2)
    jobs.play_on(job_id)
    assert jobs.state(job_id) is JobState.COMPLETED
    steps = jobs.events(job_id, "step")
    assert all(step.failed_episodes == 0 for step in steps)
    assert max(step.metrics["staleness_max"] for step in steps) <= 1


def test_learns_same_bits_as_against_a_record(jobs):
    settings = {**GAME, "deterministic": True, "steps": 2, "collapse_guard": False}
    together = jobs.start(**settings, agents=TWO)
    jobs.play_on(together)
    for agent, other in (("x", "o"), ("o", "x")):
        agents = {name: TWO[name] if name == agent else Replay(together) for name in TWO}
        alone = jobs.start(**settings, agents=agents, rollout="server")
        jobs.play_on(alone)
        assert jobs.state(alone) is JobState.COMPLETED
        assert hashes(jobs, alone, 2)[agent] == hashes(jobs, together, 2)[agent] is not None
        assert other not in jobs.service.policies_of(alone)


def test_meets_newest_version_in_league_while_playing_ahead(jobs):
    agents = {"x": Train(), "o": League(anchors=[], anchor_share=0, current_share=1.0)}
    job_id = jobs.start(**GAME, agents=agents, max_staleness=1, steps=3)
    jobs.play_on(job_id)
    assert jobs.state(job_id) is JobState.COMPLETED
    assert all(step.failed_episodes == 0 for step in jobs.events(job_id, "step"))
