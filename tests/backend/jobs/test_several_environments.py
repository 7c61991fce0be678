"""One job in several environments: what is played, measured and evaluated, also after a kill."""

from __future__ import annotations

from tinkergym.algorithms import GRPO
from tinkergym.schema.evaluate_every import EvaluateEvery
from tinkergym.schema.events import MOST_METRICS_OF_STEP, JobState

PAYS_ALIKE = {"id": "test/Fickle-v0", "kwargs": {"pay": 0.0}, "weight": 1}
PAYS_WELL = {"id": "test/Fickle-v0", "kwargs": {"pay": 100.0}, "weight": 1}
ALIKE, WELL = "test/Fickle-v0[pay=0.0]", "test/Fickle-v0[pay=100.0]"
MIXED = {
    "environment": {"id": "test/Fickle-v0", "kwargs": {"pay": 0.0}},
    "environments": [PAYS_ALIKE, PAYS_WELL],
    "algorithm": GRPO(group_size=2, groups_per_step=4, baseline="batch"),
}


def test_gives_each_environment_its_share_metrics_baseline_and_evaluation(jobs):
    job_id = jobs.start(steps=2, evaluate=EvaluateEvery(2, episodes=3), **MIXED)
    jobs.play_on(job_id)
    assert jobs.state(job_id) is JobState.COMPLETED
    for step in jobs.events(job_id, "step"):
        metrics = step.metrics
        assert metrics[f"environment/{ALIKE}/episodes"] + metrics[f"environment/{WELL}/episodes"] == 8
        assert metrics[f"environment/{ALIKE}/reward_mean"] == 0 < metrics[f"environment/{WELL}/reward_mean"]
        # Compared across environments, those of the one that pays nothing would all be below the mean.
        assert metrics["zero_variance_groups"] == metrics[f"environment/{ALIKE}/episodes"] / 2
        assert f"environment/{WELL}/env/letters" in metrics
    done = [(one.step, one.name) for one in jobs.events(job_id, "evaluation")]
    assert done == [(step, name) for step in (0, 2) for name in (ALIKE, WELL)]


def test_plays_same_environments_again_after_a_kill(jobs):
    job_id = jobs.start(steps=1, **MIXED)
    before = {request.episode_id: request.environment for request in jobs.lease(job_id)}
    jobs.take_over(job_id)
    after = {}
    while len(after) < 8:
        after |= {request.episode_id: request.environment for request in jobs.lease(job_id)}
    assert before.items() <= after.items()
    assert len({environment.model_dump_json() for environment in after.values()}) == 2


def test_cuts_metrics_of_too_many_environments_and_goes_on(jobs):
    kwargs = [{"pay": float(-number)} for number in range(12)]
    job_id = jobs.start(
        steps=1,
        environment={"id": "test/Fickle-v0", "kwargs": kwargs[0]},
        environments=[{"id": "test/Fickle-v0", "kwargs": own, "weight": 1} for own in kwargs],
        algorithm=GRPO(group_size=2, groups_per_step=12, baseline="batch"),
    )
    jobs.submit(job_id, [_with_many_metrics(result) for result in jobs.play(jobs.lease(job_id))])
    jobs.until(job_id, lambda: jobs.state(job_id).final)
    assert jobs.state(job_id) is JobState.COMPLETED
    (step,) = jobs.events(job_id, "step")
    assert len(step.metrics) == MOST_METRICS_OF_STEP
    assert step.metrics["metrics_left_out"] > 200


def _with_many_metrics(result):
    (trajectory,) = result.trajectories
    metrics = {f"m{number}": 1.0 for number in range(100)}
    turns = [turn.model_copy(update={"metrics": metrics}) for turn in trajectory.turns]
    return result.model_copy(update={"trajectories": [trajectory.model_copy(update={"turns": turns})]})
