from __future__ import annotations

import pytest

from tinkergym.algorithms import GRPO
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.trajectory.trajectory import StopReason


def test_names_and_counts_failed_episodes_left_out(jobs):
    environment = EnvironmentRef(id="test/Fickle-v0", kwargs={"failing": 0.3})
    job_id = jobs.start(
        environment=environment,
        steps=1,
        max_failed_fraction=0.9,
        algorithm=GRPO(group_size=2, groups_per_step=12),
    )
    jobs.play_on(job_id)
    step = jobs.events(job_id, "step")[0]
    warning = jobs.events(job_id, "warning")[0]
    assert 0 < step.failed_episodes == step.stop_reasons["environment_error"] == warning.count < 24
    assert warning.name == "environment_error"
    assert "the machine is broken" in warning.message
    assert "Traceback" in warning.message


@pytest.mark.parametrize("most", [0.1, 0.9])
def test_says_on_completion_that_it_lost_many_episodes(jobs, most):
    environment = EnvironmentRef(id="test/Fickle-v0", kwargs={"failing": 0.3})
    algorithm = GRPO(group_size=2, groups_per_step=12)
    limits = {"max_failed_fraction": 1.0, "warn_failed_fraction": most}
    job_id = jobs.start(environment=environment, steps=2, algorithm=algorithm, **limits)
    jobs.play_on(job_id)
    assert jobs.state(job_id) is JobState.COMPLETED
    failed = sum(step.failed_episodes for step in jobs.events(job_id, "step"))
    lost = [event for event in jobs.events(job_id, "warning") if event.name == "episodes_lost"]
    assert [(event.count, event.step) for event in lost] == ([(failed, 2)] if most == 0.1 else [])


def test_drops_keeps_or_replays_failed_episode_as_the_job_says(jobs):
    # Episodes of a group that fail leave the others to be compared.
    environment = EnvironmentRef(id="test/Fickle-v0", kwargs={"failing": 0.3})
    weights, retried = {}, {}
    for on_failure in ("drop", "keep", "retry:1"):
        job_id = jobs.start(
            environment=environment,
            steps=1,
            on_failure=on_failure,
            max_failed_fraction=1.0,
            algorithm=GRPO(group_size=4, groups_per_step=6),
            deterministic=True,
        )
        jobs.play_on(job_id)
        (step,) = jobs.events(job_id, "step")
        assert jobs.state(job_id) is JobState.COMPLETED
        assert 0 < step.failed_episodes < 24
        weights[on_failure], retried[on_failure] = (
            jobs.weights(job_id, 1),
            step.metrics["retried_episodes"],
        )
        failed = step.failed_episodes
    # Its seed makes the environment fail again, so a retry ends as a drop does; it is counted.
    assert weights["drop"] == weights["retry:1"] != weights["keep"]
    assert retried == {"drop": 0.0, "keep": 0.0, "retry:1": failed}


def test_fails_job_with_too_many_failed_episodes_and_names_them(jobs):
    job_id = jobs.start(environment=EnvironmentRef(id="test/Fickle-v0", kwargs={"failing": 1.0}))
    jobs.play_on(job_id)
    end = jobs.events(job_id, "state")[-1]
    assert (end.state, end.error.type) == (JobState.FAILED, "TooManyFailedEpisodesError")
    assert end.error.field == "max_failed_fraction"


@pytest.mark.parametrize(
    ("reason", "error", "shown", "hint"),
    [
        (
            StopReason.ENVIRONMENT_TIMEOUT,
            "step did not return within 1.0 s\nit is here:\n  File 'env.py'\n    time.sleep(9)",
            "step did not return within 1.0 s",
            "raise limits.step_timeout_seconds",
        ),
        (
            StopReason.SAMPLING_FAILED,
            "InvalidRequestError: temperature: vLLM does not sample at 0.001 (use 0, or at least 0.01)",
            "(use 0, or at least 0.01)",
            "not the environment",
        ),
    ],
)
def test_says_why_and_whose_fault_ended_by_failed_episodes(jobs, reason, error, shown, hint):
    job_id = jobs.start()
    failed = [
        result.model_copy(
            update={
                "trajectories": [result.trajectory.model_copy(update={"stop_reason": reason, "error": error})]
            }
        )
        for result in jobs.play(jobs.lease(job_id))
    ]
    jobs.submit(job_id, failed)
    jobs.until_state(job_id, JobState.FAILED)
    end = jobs.events(job_id, "state")[-1]
    assert shown in end.error.message
    assert hint in end.error.hint


def test_rejects_records_of_rewards_too_large_to_compute_with(lab):
    job_id = lab.start()
    huge = []
    for result in lab.play(lab.lease(job_id)):
        turns = [turn.model_copy(update={"reward": 1e308}) for turn in result.trajectory.turns]
        trajectory = result.trajectory.model_copy(update={"turns": turns})
        huge.append(result.model_copy(update={"trajectories": [trajectory]}))
    with pytest.raises(InvalidRequestError, match=r"turns\.0\.reward"):
        lab.submit(job_id, huge)


def failed(trajectory):
    return trajectory.model_copy(
        update={"terminated": False, "stop_reason": StopReason.ENVIRONMENT_ERROR, "error": "it broke"}
    )


def test_tells_two_clients_of_each_other_once(jobs):
    job_id = jobs.start(steps=2)
    first, second = "client-here-1-aa", "client-there-2-bb"
    leased = jobs.lease(job_id, most=1, worker_id=first)
    jobs.lease(job_id, most=0, worker_id=second, wait_seconds=0)
    jobs.lease(job_id, most=0, worker_id=first, wait_seconds=0)
    jobs.until(job_id, lambda: jobs.events(job_id, "warning"))
    (warning,) = jobs.events(job_id, "warning")
    assert (warning.name, warning.count) == ("several_clients", 2)
    assert "client-here-1" in warning.message
    assert "client-there-2" in warning.message
    jobs.submit(job_id, jobs.play(leased))
    jobs.lease(job_id, most=0, worker_id=second, wait_seconds=0)
    jobs.play_on(job_id)
    assert [one.name for one in jobs.events(job_id, "warning")] == ["several_clients"]


def test_tells_nobody_of_environments_of_one_process(jobs):
    job_id = jobs.start(steps=1)
    for worker in ("script-here-1-aa", "script-here-1-bb", "script-here-1-aa"):
        jobs.lease(job_id, most=0, worker_id=worker, wait_seconds=0)
    jobs.play_on(job_id)
    assert not jobs.events(job_id, "warning")
