"""Jobs whose episodes are played ahead: what overlaps, what every token is stamped with, and the bound."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
import numpy as np
import pytest

from backend.episodes.episode_requests import step_requests
from backend.episodes.staleness import staleness_metrics, versions_of, within_bound
from backend.jobs.step_report import failure_warnings, statistics
from backend.jobs.turn_rewards import counts
from backend.learner.learner import Learner
from backend.learner.sequences import TrainSequence
from backend.settings.served_models import PACKAGED_MODELS
from tests.backend.scripted_policy import ScriptedPolicy
from tests.backend.seats import result_of, two_seats
from tinkergym.algorithms import GRPO
from tinkergym.errors import InvalidRequestError
from tinkergym.registration.environments import register
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import EnvironmentRef, LoRA
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.parsing import parse_spec
from tinkergym.spaces import Text
from tinkergym.trajectory.trajectory import Segment, StopReason, Trajectory, Turn

PATIENCE_SECONDS = 120.0
PAUSES = EnvironmentRef(id="test/Pauses-v0")


class Pauses(gym.Env):
    """Asks twice, pays for short answers, and between the two waits until it may go on."""

    observation_space = Text(100)
    action_space = Text(100)
    go_on = threading.Event()
    waiting = threading.Semaphore(0)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turns = 0
        return "say something", {}

    def step(self, action):
        self.turns += 1
        if self.turns == 1:
            Pauses.waiting.release()
            assert Pauses.go_on.wait(PATIENCE_SECONDS)
        return "again", -float(len(action)), self.turns == 2, False, {}


@pytest.fixture
def pauses():
    register(PAUSES.id, Pauses)
    Pauses.go_on, Pauses.waiting = threading.Event(), threading.Semaphore(0)
    Pauses.go_on.set()
    yield Pauses
    Pauses.go_on.set()
    gym.registry.pop(PAUSES.id)


def versions(results):
    return [[turn.policy_version for turn in result.trajectory.turns] for result in results]


def test_plays_next_step_to_its_end_while_the_learner_works(lab, learner):
    job_id = lab.start(max_staleness=1)
    lab.play_step(job_id)
    assert learner.reached.wait(PATIENCE_SECONDS)
    requests = lab.lease(job_id)
    assert [request.step for request in requests] == [2] * 4
    results = lab.play(requests)
    assert lab.submit(job_id, results) == ["accepted"] * 4
    assert len(lab.service.episodes(job_id, 2)) == 4
    assert lab.events(job_id, "step") == []
    learner.go_on.set()
    lab.until_state(job_id, JobState.COMPLETED)
    first, second = lab.events(job_id, "step")
    assert (first.metrics["staleness_mean"], first.metrics["staleness_max"]) == (0.0, 0.0)
    assert (second.metrics["staleness_mean"], second.metrics["staleness_max"]) == (1.0, 1.0)
    assert second.metrics["staleness_1_tokens"] == second.sampled_tokens
    assert {step.metrics["too_stale_episodes"] for step in (first, second)} == {0.0}
    # None of its tokens is of the version that learned from them, and that is compared all the same.
    assert second.metrics["parity_max"] <= 1e-5


def test_plays_and_counts_nothing_ahead_in_strict_job(jobs, held):
    job_id = jobs.start()
    jobs.play_step(job_id)
    assert held.reached.wait(PATIENCE_SECONDS)
    assert jobs.lease(job_id, wait_seconds=0.0) == []
    held.go_on.set()
    jobs.play_on(job_id)
    assert not [name for step in jobs.events(job_id, "step") for name in step.metrics if "stale" in name]


def test_keeps_running_episode_through_publish_and_names_versions_by_turn(lab, learner, pauses):
    job_id = lab.start(
        environment=PAUSES,
        max_staleness=1,
        checkpoint_every=1,
        algorithm=GRPO(group_size=2, groups_per_step=2, learning_rate=0.05),
    )
    lab.play_step(job_id)
    assert learner.reached.wait(PATIENCE_SECONDS)
    pauses.go_on.clear()
    pauses.waiting = threading.Semaphore(0)
    requests = lab.lease(job_id)
    with ThreadPoolExecutor() as threads:
        playing = threads.submit(lab.play, requests)
        for _ in requests:
            assert pauses.waiting.acquire(timeout=PATIENCE_SECONDS)
        learner.go_on.set()
        lab.until(job_id, lambda: lab.events(job_id, "checkpoint"))
        pauses.go_on.set()
        results = playing.result()
    assert versions(results) == [[0, 1]] * 4
    assert {result.trajectory.stop_reason for result in results} == {StopReason.TERMINATED}
    logprobs_are_those_of_the_named_versions(lab, job_id, results)
    assert lab.submit(job_id, results) == ["accepted"] * 4
    lab.until_state(job_id, JobState.COMPLETED)
    step = lab.events(job_id, "step")[1]
    late = [turn.end - turn.start for result in results for turn in result.trajectory.turns[1:]]
    assert step.metrics["staleness_0_tokens"] == sum(late)
    assert step.metrics["staleness_1_tokens"] == step.sampled_tokens - sum(late)
    assert 0.0 < step.metrics["staleness_mean"] < step.metrics["staleness_max"] == 1.0
    # The tokens of version 0 are not held against version 1.
    assert step.metrics["parity_max"] <= 1e-5


def test_plays_ahead_up_to_max_staleness(jobs, held):
    job_id = jobs.start(max_staleness=2, steps=5)
    jobs.play_step(job_id)
    assert held.reached.wait(PATIENCE_SECONDS)
    requests = jobs.lease(job_id)
    assert [request.step for request in requests] == [2] * 4 + [3] * 4
    assert jobs.submit(job_id, jobs.play(requests)) == ["accepted"] * 8
    assert jobs.lease(job_id, wait_seconds=0.0) == []
    held.go_on.set()
    jobs.play_on(job_id)
    assert jobs.state(job_id) is JobState.COMPLETED
    steps = jobs.events(job_id, "step")
    assert [step.step for step in steps] == [1, 2, 3, 4, 5]
    assert steps[2].metrics["staleness_max"] == 2.0
    assert max(step.metrics["staleness_max"] for step in steps) == 2.0


@pytest.mark.parametrize("checkpoint_every", [1, 100])
def test_keeps_stored_stamps_when_another_worker_takes_the_job(jobs, held, checkpoint_every):
    job_id, stored = killed_in_the_second_step(jobs, held, checkpoint_every)
    made = jobs.weights(job_id, 1)
    jobs.start_job(job_id)
    left = jobs.lease(job_id)
    known = {result.episode_id for result in stored}
    assert [request.episode_id for request in left] == sorted({f"{job_id}:3:{i}" for i in range(4)} - known)
    assert jobs.submit(job_id, jobs.play(left)) == ["accepted"]
    jobs.play_on(job_id)
    assert jobs.state(job_id) is JobState.COMPLETED
    assert jobs.events(job_id, "warning") == []
    assert jobs.weights(job_id, 1) == made
    third = jobs.events(job_id, "step")[-2]
    for version in {turn.policy_version for result in stored for turn in result.trajectory.turns}:
        of_version = sum(
            turn.end - turn.start
            for result in stored
            for turn in result.trajectory.turns
            if turn.policy_version == version
        )
        assert third.metrics[f"staleness_{2 - version}_tokens"] >= of_version
    assert all(step.metrics["staleness_max"] <= 1.0 for step in jobs.events(job_id, "step"))


def test_plays_anew_episodes_whose_weights_a_replay_cannot_find(jobs, held):
    class Other(ScriptedPolicy):
        def recorded_sha256(self, version):
            return "another" if version == 1 else super().recorded_sha256(version)

    job_id, _ = killed_in_the_second_step(jobs, held, 100)
    jobs.policy_class = Other
    jobs.start_job(job_id)
    jobs.play_on(job_id)
    assert jobs.state(job_id) is JobState.COMPLETED
    assert [warning.name for warning in jobs.events(job_id, "warning")] == ["replay_differs"]
    steps = jobs.events(job_id, "step")
    assert [step.step for step in steps][-4:] == [1, 2, 3, 4]
    assert all(step.metrics["staleness_max"] <= 1.0 for step in steps)


def test_plays_to_its_end_with_a_worker_of_its_own(lab):
    job_id = lab.start(max_staleness=1, steps=4, rollout="script")
    lab.play_on(job_id)
    assert lab.state(job_id) is JobState.COMPLETED
    steps = lab.events(job_id, "step")
    assert len(steps) == 4
    assert max(step.metrics["staleness_max"] for step in steps) <= 1.0
    assert max(step.metrics["parity_max"] for step in steps) <= 1e-5
    (policy_id,) = lab.service.policies_of(job_id).values()
    assert lab.pool.own.engine.loaded()[policy_id] == 4


def test_detects_engine_with_other_weights_without_its_tokens(lab, learner, publishes_wrongly):
    job_id = lab.start(max_staleness=1, steps=2)
    lab.play_step(job_id)
    assert learner.reached.wait(PATIENCE_SECONDS)
    lab.submit(job_id, lab.play(lab.lease(job_id)))
    publishes_wrongly()
    learner.go_on.set()
    lab.until_state(job_id, JobState.FAILED)
    assert lab.events(job_id, "state")[-1].error.type == "ParityError"


# --- what cannot be, and what would be too old ---


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"max_staleness": 1, "deterministic": True}, "stale_in_lockstep"),
        ({"max_staleness": 1, "algorithm": {"loss": "reinforce"}}, "stale_without_correction"),
        ({"max_staleness": 9}, "less_than_equal"),
        ({"max_staleness": -1}, "greater_than_equal"),
    ],
)
def test_rejects_impossible_staleness_by_name(settings, code):
    with pytest.raises(InvalidRequestError) as caught:
        parse_spec({"environment": {"id": "x"}, "steps": 1, **settings})
    assert (caught.value.field, caught.value.code) == ("max_staleness", code)


def test_allows_reinforce_where_its_tokens_are_corrected():
    algorithm = {"loss": "reinforce", "importance_correction": "truncated"}
    parse_spec({"environment": {"id": "x"}, "steps": 1, "max_staleness": 1, "algorithm": algorithm})


def played(spec, step, *sampled_by):
    """A step's episodes: for each, the versions of its turns."""
    requests = step_requests("job-1", spec, step)
    return [
        (
            request,
            EpisodeResult(episode_id=request.episode_id, lease_id="l", trajectories=[trajectory(versions)]),
        )
        for request, versions in zip(requests, sampled_by, strict=True)
    ]


def trajectory(versions):
    length = 3 * len(versions) + 1
    mask = [index % 3 != 0 for index in range(length)]
    segment = Segment(
        token_ids=list(range(length)),
        loss_mask=mask,
        sampling_logprobs=[-1.0 if sampled else None for sampled in mask],
    )
    turns = [
        Turn(
            segment=0,
            start=3 * number + 1,
            end=3 * number + 3,
            policy_version=version,
            finish_reason="stop",
            observation="",
            action="",
            reward=1.0,
        )
        for number, version in enumerate(versions)
    ]
    return Trajectory(
        segments=[segment],
        turns=turns,
        terminated=True,
        truncated=False,
        stop_reason=StopReason.TERMINATED,
        seed=0,
    )


def job(**settings):
    settings = {"max_staleness": 2, "algorithm": GRPO(group_size=2, groups_per_step=2), **settings}
    return RLSpec(environment=EnvironmentRef(id="x"), steps=9, **settings)


@pytest.mark.parametrize("on_failure", ["drop", "keep"])
def test_drops_and_counts_episode_with_one_token_beyond_the_bound(on_failure):
    spec = job(on_failure=on_failure)
    found = within_bound(spec, 6, played(spec, 6, [5, 5], [3, 4], [2, 5], []))
    assert [counts(spec, result.trajectory) for _, result in found] == [True, True, False, True]
    counted = statistics(found)
    assert counted.stop_reasons == {"terminated": 3, "too_stale": 1}
    (warning,) = [w for w in failure_warnings(found, 6) if w.name == "too_stale"]
    assert "none before version 3" in warning.message
    assert staleness_metrics(6, found) == {
        "staleness_0_tokens": 4.0,
        "staleness_1_tokens": 2.0,
        "staleness_2_tokens": 2.0,
        "staleness_mean": 0.75,
        "staleness_max": 2.0,
        "too_stale_episodes": 1.0,
    }


def test_applies_bound_to_the_trained_seats():
    spec = job()
    request, other = (two_seats(request, trained="x") for request in step_requests("job-1", spec, 6)[:2])
    old, new = (
        [trajectory([version]).model_copy(update={"agent": agent}) for agent in "xo"] for version in (2, 5)
    )
    found = within_bound(
        spec, 6, [(request, result_of(request, new[0], old[1])), (other, result_of(other, old[0], new[1]))]
    )
    reasons = [[one.stop_reason.value for one in result.trajectories] for _, result in found]
    assert reasons == [["terminated", "terminated"], ["too_stale", "terminated"]]
    counted = staleness_metrics(6, found)
    assert (counted["too_stale_episodes"], counted["staleness_0_tokens"]) == (1, 2)


def test_stamps_every_sampled_token_with_version_of_its_turn():
    every = np.array([False, True, True, False, True, True, False])
    assert versions_of(trajectory([4, 5]), 0, every).tolist() == [4, 4, 5, 5]
    assert versions_of(trajectory([4, 5]), 0, every & (np.arange(7) > 1)).tolist() == [4, 5, 5]
    assert versions_of(trajectory([4, 4]), 0, every).tolist() == [4, 4, 4, 4]


# --- helpers ---


def killed_in_the_second_step(jobs, held, checkpoint_every):
    """Kill a worker that learns the second step while three of the third step's episodes are stored."""
    held.hold_at = 2
    job_id = jobs.start(max_staleness=1, steps=4, checkpoint_every=checkpoint_every)
    jobs.play_step(job_id)
    jobs.play_step(job_id)
    assert held.reached.wait(PATIENCE_SECONDS)
    requests = jobs.lease(job_id)
    assert [request.step for request in requests] == [3] * 4
    assert jobs.submit(job_id, jobs.play(requests)[:3]) == ["accepted"] * 3
    stored = jobs.service.episodes(job_id, 3)
    assert len(stored) == 3
    held.dies = True
    held.go_on.set()
    jobs.worker.threads[job_id].join(PATIENCE_SECONDS)
    held.dies = False
    jobs.replace_worker()
    return job_id, stored


def logprobs_are_those_of_the_named_versions(lab, job_id, results):
    checkpoint = lab.events(job_id, "checkpoint")[0]
    learner = Learner(PACKAGED_MODELS["nano"])
    learner.load("version 1", lab.folder(checkpoint), LoRA())
    for result in results:
        (segment,) = result.trajectory.segments
        sequence = TrainSequence.from_segment(segment, advantage=0.0, temperature=3.0)
        sampled = np.asarray([p for p in segment.sampling_logprobs if p is not None])
        by = versions_of(result.trajectory, 0, np.asarray(segment.loss_mask))
        zero, one = (learner.logprobs(policy, [sequence])[0] for policy in (None, "version 1"))
        assert np.where(by == 0, zero, one) == pytest.approx(sampled, abs=1e-5)
        assert np.where(by == 0, one, zero) != pytest.approx(sampled, abs=1e-3)
