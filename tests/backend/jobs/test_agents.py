"""Jobs that train the agents of a game: a policy each, or one that several seats share."""

from __future__ import annotations

import pytest

from backend.episodes.episode_requests import step_requests
from backend.errors import LeaseLostError
from backend.learner.learner import Learner
from tests.backend.scripted_policy import ScriptedPolicy
from tests.backend.watched_jobs import PATIENCE_SECONDS
from tinkergym.algorithms import GRPO
from tinkergym.errors import NotFoundError
from tinkergym.schema.events import JobState
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.jobs.parts import EnvironmentRef, LoRA, Sampling
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import SharedWith, Train

FIRST, SECOND = "o", "x"
GAME = {
    # Illegal moves, of which there are many, do not end the game.
    "environment": EnvironmentRef(id="board/TicTacToe-v0", kwargs={"on_illegal": "random"}),
    "algorithm": GRPO(group_size=2, groups_per_step=2, baseline="batch"),
    "sampling": Sampling(max_turn_tokens=4, temperature=3.0),
    "agents": {FIRST: Train(), SECOND: Train(adapter=LoRA(rank=4), system_prompt="Win.")},
}


def spec(**settings):
    return RLSpec(**{**GAME, "steps": 2, **settings})


def checkpoints(lab, job_id):
    return {
        agent: [view.step for view in lab.service.checkpoints(job_id, agent)] for agent in (FIRST, SECOND)
    }


def hashes(lab, job_id, version):
    return [lab.service.version_sha256(job_id, version, agent) for agent in (FIRST, SECOND)]


def test_asks_own_policy_of_each_seat_with_own_seeds():
    (request, *_) = step_requests("job-1", spec(system_prompt="Play."), 2)
    assert {agent: seat.policy for agent, seat in request.seats.items()} == {
        FIRST: f"job-1/{FIRST}",
        SECOND: f"job-1/{SECOND}",
    }
    assert [seat.system_prompt for seat in request.seats.values()] == ["Play.", "Win."]
    first, second = (seat.sampling_seed for seat in request.seats.values())
    assert abs(first - second) > 10**6
    assert 0 <= second < 2**63


def test_asks_policy_that_a_seat_shares():
    shared = spec(agents={FIRST: Train(system_prompt="Win."), SECOND: SharedWith(agent=FIRST)})
    (request, *_) = step_requests("job-1", shared, 1)
    assert {seat.policy for seat in request.seats.values()} == {f"job-1/{FIRST}"}
    assert {seat.system_prompt for seat in request.seats.values()} == {"Win."}


def test_trains_every_policy_from_its_own_seat_and_keeps_it(lab, monkeypatch):
    calls, compute = [], Learner.forward_backward_many

    def counted(self, parts):
        calls.append(len(parts))
        return compute(self, parts)

    monkeypatch.setattr(Learner, "forward_backward_many", counted)
    job_id = lab.start(**GAME, steps=2, checkpoint_every=1)
    lab.play_on(job_id)
    assert lab.state(job_id) is JobState.COMPLETED
    assert calls == [2, 2]  # the policies of a step in one call
    assert checkpoints(lab, job_id) == {FIRST: [1, 2], SECOND: [1, 2]}
    last = hashes(lab, job_id, 2)
    assert None not in last
    assert last[0] != last[1]
    assert hashes(lab, job_id, 1) != last
    for step in lab.events(job_id, "step"):
        each = [step.metrics[f"policy/{agent}/trained_tokens"] for agent in (FIRST, SECOND)]
        assert sum(each) == step.trained_tokens == step.sampled_tokens
        assert each == [step.metrics[f"seat/{agent}/sampled_tokens"] for agent in (FIRST, SECOND)]
        assert step.reward_mean is None
        paid = [step.metrics[f"seat/{agent}/reward_mean"] for agent in (FIRST, SECOND)]
        assert sum(paid) == pytest.approx(0.0)
    assert [event.agent for event in lab.events(job_id, "checkpoint")] == [FIRST, SECOND] * 2


def test_learns_shared_policy_from_both_seats(jobs):
    job_id = jobs.start(**{**GAME, "agents": {FIRST: Train(), SECOND: SharedWith(agent=FIRST)}}, steps=1)
    jobs.play_on(job_id)
    assert jobs.state(job_id) is JobState.COMPLETED
    (step,) = jobs.events(job_id, "step")
    assert step.metrics[f"policy/{FIRST}/trained_tokens"] == step.sampled_tokens
    assert jobs.service.policies_of(job_id).keys() == {FIRST}


@pytest.mark.parametrize("keep", [1, 3])
def test_resumes_at_the_last_step_all_policies_saved(jobs, keep):
    saved, dies = [], True

    class Dying(ScriptedPolicy):
        def save(self, step, *, version=None):
            saved.append(step)
            if dies and saved == [1, 1, 2, 2]:
                raise LeaseLostError("as if it had been killed")
            super().save(step, version=version)

    jobs.policy_class = Dying
    job_id = jobs.start(**GAME, steps=3, checkpoint_every=1, keep_checkpoints=keep)
    for _ in range(2):
        jobs.play_step(job_id)
    jobs.worker.threads[job_id].join(PATIENCE_SECONDS)
    before = hashes(jobs, job_id, 2)
    assert checkpoints(jobs, job_id) == {FIRST: [1, 2], SECOND: [1]}
    dies = False
    jobs.take_over(job_id)
    jobs.play_on(job_id)
    assert jobs.state(job_id) is JobState.COMPLETED
    assert checkpoints(jobs, job_id) == {agent: [1, 2, 3][-keep:] for agent in (FIRST, SECOND)}
    # Step 2 was learned again from the episodes that were stored.
    assert hashes(jobs, job_id, 2) == before
    assert [step.step for step in jobs.events(job_id, "step")] == [1, 2, 2, 3]


def test_rests_the_seats_of_a_job_on_two_base_models(lab):
    job_id = lab.start(**{**GAME, "agents": {"x": Train(), "o": Train(model="nano-instruct")}}, steps=2)
    lab.play_on(job_id)
    assert lab.state(job_id) is JobState.COMPLETED, lab.events(job_id, "state")[-1]
    assert all(step.failed_episodes == 0 for step in lab.events(job_id, "step"))
    for agent, model in (("x", "nano"), ("o", "nano-instruct")):
        assert lab.tenant.find_policy(PolicyRef.parse(f"{job_id}/{agent}")).policy.model == model
        assert lab.service.version_sha256(job_id, 2, agent)
    # The second model goes with the job.
    for job in list(lab.pool.jobs.threads.values()):
        job.join(60)
    with pytest.raises(NotFoundError):
        lab.transport(job_id).renderer("nano-instruct")


def test_applies_change_to_one_policy_alone_and_survives_a_kill(jobs):
    job_id = jobs.start(**GAME, steps=4, checkpoint_every=4)
    jobs.play_step(job_id)
    jobs.until(job_id, lambda: jobs.events(job_id, "step"))  # Else the change may reach step 1.
    jobs.tenant.change_settings(job_id, {"agents.o.learning_rate": 0.125, "updates": "only:o"})
    jobs.play_step(job_id)
    jobs.take_over(job_id)
    jobs.play_on(job_id)
    assert jobs.state(job_id) is JobState.COMPLETED
    rates = {step.step: step.by_policy("learning_rate") for step in jobs.events(job_id, "step")}
    assert (rates[1].keys(), rates[1]["o"]) == ({"x", "o"}, rates[1]["x"])
    (change,) = jobs.events(job_id, "update")
    assert change.from_step in (2, 3)
    for step in range(change.from_step, 5):
        assert rates[step] == {"o": 0.125}
