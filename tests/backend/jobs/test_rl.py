from __future__ import annotations

import dataclasses
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import tinkergym as tg
from backend.engines.embedded.engine import TransformersEngine
from backend.errors import LeaseLostError
from backend.learner.checkpoints import Checkpoint
from tinkergym.agent import agent_loop
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.algorithms import GRPO, RLOO, ReinforcePlusPlus
from tinkergym.schema.episodes import LeaseRequest
from tinkergym.schema.events import JobState
from tinkergym.schema.job_spec import EnvironmentRef, FullParameters, LoRA
from tinkergym.schema.sampling import SampleRequest
from tinkergym.trajectory.trajectory import StopReason


@pytest.mark.parametrize("adapter", [LoRA(rank=4), FullParameters()])
def test_a_service_in_bfloat16_trains_within_its_wider_threshold(make_lab, adapter):
    first = []
    for dtype in ("float32", "bfloat16"):
        lab = make_lab(dtype, dtype=dtype)
        job_id = lab.start(adapter=adapter, steps=3)
        lab.play_on(job_id)
        assert lab.state(job_id) is JobState.COMPLETED, lab.events(job_id, "state")[-1]
        steps = lab.events(job_id, "step")
        first.append(steps[0].metrics["sampled_entropy"])
    # The same episodes, as far as rounding does not make other tokens of them.
    assert abs(first[1] - first[0]) > 1e-5
    assert max(step.metrics["parity_mean"] for step in steps) <= 2e-2
    assert lab.weights(job_id, 1) != lab.weights(job_id, 3)


@pytest.mark.parametrize("adapter", [LoRA(rank=4), FullParameters()])
def test_a_job_trains_to_its_end_and_its_policy_can_be_sampled_afterwards(lab, adapter):
    job_id = lab.start(adapter=adapter)
    lab.play_on(job_id)
    assert [event.state for event in lab.events(job_id, "state")] == [
        JobState.QUEUED,
        JobState.STARTING,
        JobState.RUNNING,
        JobState.COMPLETED,
    ]
    steps = lab.events(job_id, "step")
    assert [step.step for step in steps] == [step.policy_version for step in steps] == [1, 2]
    assert max(step.metrics["parity_max"] for step in steps) <= 1e-5
    assert all(step.sampled_tokens > 0 and step.metrics["env/letters"] >= 0 for step in steps)
    assert lab.weights(job_id, 1) != lab.weights(job_id, 2)
    checkpoint = lab.events(job_id, "checkpoint")[-1]
    assert checkpoint.step == 2
    assert (Path(checkpoint.path) / "manifest.json").is_file()
    assert sample(lab, job_id).policy_version == 2


def test_a_policy_whose_job_ended_before_the_worker_started_is_loaded_from_its_checkpoint(lab):
    job_id = lab.start(steps=1)
    lab.play_on(job_id)
    before = sample(lab, job_id)
    lab.replace_pool()
    after = sample(lab, job_id)
    assert (after.policy_version, after.token_ids) == (1, before.token_ids)
    assert after.sampling_logprobs == pytest.approx(before.sampling_logprobs, abs=1e-5)


def test_version_0_is_the_untrained_model_whatever_was_published_since(lab):
    job_id = lab.start(steps=1, algorithm=GRPO(group_size=2, groups_per_step=2, learning_rate=0.1))
    lab.play_on(job_id)
    untrained, base = sample(lab, job_id, version=0), sample(lab, "nano")
    assert (untrained.policy_version, untrained.token_ids) == (0, base.token_ids)
    assert untrained.sampling_logprobs == pytest.approx(base.sampling_logprobs, abs=1e-5)
    assert untrained.sampling_logprobs != pytest.approx(sample(lab, job_id).sampling_logprobs, abs=1e-3)


def test_a_new_worker_replays_what_was_stored_and_plays_only_what_was_not(lab):
    job_id = lab.start(steps=3)
    lab.play_step(job_id)
    lab.play_step(job_id)
    third = lab.lease(job_id)
    lab.submit(job_id, lab.play(third[:3]))
    first_time = [lab.weights(job_id, version) for version in (1, 2)]
    lab.replace_pool()
    lab.pool.start_job(job_id)
    left = lab.lease(job_id)
    assert [request.episode_id for request in left] == [third[3].episode_id]
    assert [lab.weights(job_id, version) for version in (1, 2)] == first_time
    lab.submit(job_id, lab.play(left))
    lab.until_state(job_id, JobState.COMPLETED)
    assert lab.events(job_id, "warning") == []
    assert lab.service.job(job_id).attempt == 2


def test_a_new_worker_goes_on_from_the_last_checkpoint(lab):
    job_id = lab.start(steps=3, checkpoint_every=1)
    lab.play_step(job_id)
    lab.play_step(job_id)
    # The third step's episodes may be handed out before the second one's checkpoint is written.
    lab.until(job_id, lambda: len(lab.events(job_id, "checkpoint")) == 2)
    lab.replace_pool()
    lab.pool.start_job(job_id)
    assert {request.step for request in lab.lease(job_id)} == {3}
    assert lab.events(job_id, "state")[-1].reason == "resumed after step 2"


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(lab):
    job_id = lab.start(steps=3, checkpoint_every=1)
    lab.play_step(job_id)
    lab.play_step(job_id)
    lab.until(job_id, lambda: len(lab.events(job_id, "checkpoint")) == 2)
    newest = Path(lab.events(job_id, "checkpoint")[-1].path)
    (newest / "optimizer.safetensors").write_bytes(b"rust")
    lab.replace_pool()
    lab.pool.start_job(job_id)
    assert {request.step for request in lab.lease(job_id)} == {2}
    assert [warning.name for warning in lab.events(job_id, "warning")] == ["checkpoint_damaged"]


def test_a_checkpoint_that_a_killed_worker_was_about_to_replace_is_resumed_from(lab):
    job_id = lab.start(steps=3, checkpoint_every=1)
    lab.play_step(job_id)
    lab.play_step(job_id)
    lab.until(job_id, lambda: len(lab.events(job_id, "checkpoint")) == 2)
    lab.close_pool()
    newest = Path(lab.events(job_id, "checkpoint")[-1].path)
    newest.rename(newest.with_name(f".replaced-{newest.name}"))
    lab.start_pool()
    lab.pool.start_job(job_id)
    assert {request.step for request in lab.lease(job_id)} == {3}
    assert lab.events(job_id, "warning") == []


def test_a_checkpoint_that_another_worker_wrote_over_is_passed_over(lab):
    job_id = lab.start(steps=3, checkpoint_every=1)
    lab.play_step(job_id)
    lab.play_step(job_id)
    lab.until(job_id, lambda: len(lab.events(job_id, "checkpoint")) == 2)
    older, newer = (Path(event.path) for event in lab.events(job_id, "checkpoint"))
    shutil.rmtree(newer)
    shutil.copytree(older, newer)
    lab.replace_pool()
    lab.pool.start_job(job_id)
    assert {request.step for request in lab.lease(job_id)} == {2}
    assert "not the one that was recorded" in lab.events(job_id, "warning")[0].message


def test_what_a_script_handed_in_counts_after_a_restart_though_the_job_is_deterministic(lab):
    job_id = lab.start(rollout="script", deterministic=True)
    first, *others = lab.lease(job_id)
    assert lab.submit(job_id, lab.play([first])) == ["accepted"]
    lab.replace_pool()
    lab.pool.start_job(job_id)
    assert {request.episode_id for request in lab.lease(job_id)} == {other.episode_id for other in others}


@pytest.mark.parametrize("adapter", [LoRA(), FullParameters()])
def test_in_lockstep_the_same_seed_gives_the_same_bits_and_a_resumed_job_too(lab, adapter):
    environment = EnvironmentRef(id="board/TicTacToeVs-v0")
    settings = {"deterministic": True, "steps": 3, "environment": environment, "adapter": adapter}
    smooth = lab.start(**settings)
    lab.play_on(smooth)
    broken = lab.start(**settings, checkpoint_every=2)
    lab.play_step(broken)
    lab.play_step(broken)
    lab.lease(broken)
    lab.replace_pool()
    lab.pool.start_job(broken)
    lab.play_on(broken)
    assert lab.weights(broken, 3) == lab.weights(smooth, 3)


@pytest.mark.slow
def test_every_setting_of_the_training_changes_what_is_learned(lab):
    plain = {"group_size": 3, "groups_per_step": 3, "learning_rate": 1e-2}
    algorithms = [
        {},
        {"learning_rate": 2e-2},
        {"lr_schedule": "linear"},
        {"lr_schedule": "cosine"},
        {"warmup_steps": 1},
        {"baseline": "batch"},
        {"normalize": "std"},
        {"aggregation": "sequence"},
        {"aggregation": "constant"},
        {"updates_per_step": 2},
        {"updates_per_step": 2, "clip_low": 0.01},
        {"updates_per_step": 2, "clip_high": 0.01},
        {"minibatches": 2},
        {"minibatches": 3},
        {"minibatches": 3, "updates_per_step": 2},
        {"minibatches": 3, "learning_rate": 0.1, "importance_correction": "truncated"},
        {"max_grad_norm": 1e-9},
        {"entropy_coefficient": 0.5},
        {"weight_decay": 0.5},
        {"updates_per_step": 2, "loss": "reinforce"},
        {"updates_per_step": 2, "loss": "importance_sampling"},
        {"updates_per_step": 2, "loss": "cispo"},
        {"updates_per_step": 2, "loss": "gspo"},
        {"updates_per_step": 2, "loss": "dro"},
        {"updates_per_step": 2, "loss": "dro", "dro_beta": 1.0},
        {"updates_per_step": 3, "learning_rate": 0.1},
        {"updates_per_step": 3, "learning_rate": 0.1, "dual_clip": 1.3},
        {"kl_coefficient": 0.1},
        {"kl_coefficient": 0.1, "kl_estimator": "k2"},
        {"kl_coefficient": 0.1, "kl_in": "reward"},
        {"updates_per_step": 2, "learning_rate": 0.1, "importance_correction": "truncated"},
        {"overlong_tokens": 4},
        {"overlong_tokens": 4, "overlong_penalty": 0.5},
        {"mask_truncated": True},
    ]
    jobs = [{"algorithm": GRPO(**plain | settings)} for settings in algorithms]
    jobs += [{"algorithm": other(**plain)} for other in (RLOO, ReinforcePlusPlus)]
    others = [{"seed": 1}, {"shuffle_rewards": True}, {"adapter": LoRA(rank=4)}, {"adapter": LoRA(alpha=8)}]
    jobs += [{"algorithm": GRPO(**plain), **settings} for settings in others]
    assert lab.that_learn_the_same(jobs) == []


def test_a_step_counts_the_tokens_that_it_learned_from_once_and_not_those_of_failed_episodes(lab):
    algorithm = GRPO(group_size=2, groups_per_step=12, updates_per_step=2, minibatches=2)
    sound = lab.start(steps=1, algorithm=algorithm)
    lab.play_on(sound)
    (step,) = lab.events(sound, "step")
    assert step.trained_tokens == step.sampled_tokens > 0
    assert step.records is None
    environment = EnvironmentRef(id="test/Fickle-v0", kwargs={"failing": 0.3})
    fickle = lab.start(environment=environment, steps=1, max_failed_fraction=1.0, algorithm=algorithm)
    lab.play_on(fickle)
    (step,) = lab.events(fickle, "step")
    assert step.failed_episodes
    assert 0 < step.trained_tokens < step.sampled_tokens


def test_rewards_that_tell_no_episode_from_another_are_a_warning_once(lab):
    job_id = lab.start(environment=EnvironmentRef(id="test/Fickle-v0", kwargs={"pay": 0.0}), steps=3)
    lab.play_on(job_id)
    (warning,) = lab.events(job_id, "warning")
    assert (warning.name, warning.step) == ("nothing_to_compare", 1)
    told_apart = lab.start(steps=1)
    lab.play_on(told_apart)
    assert not lab.events(told_apart, "warning")


@pytest.mark.parametrize("skip", [True, False])
def test_a_step_that_taught_nothing_leaves_the_policy_as_it_is_and_counts_its_updates(lab, skip):
    algorithm = GRPO(
        group_size=2,
        groups_per_step=2,
        minibatches=2,
        updates_per_step=3,
        weight_decay=0.5,
        skip_zero_gradient=skip,
    )
    unpaid = EnvironmentRef(id="test/Fickle-v0", kwargs={"pay": 0.0})
    job_id = lab.start(environment=unpaid, algorithm=algorithm, checkpoint_every=1)
    lab.play_on(job_id)
    steps = lab.events(job_id, "step")
    assert [step.metrics["skipped_updates"] for step in steps] == ([6.0, 6.0] if skip else [0.0, 0.0])
    assert [step.metrics["grad_norm"] for step in steps] == [0.0, 0.0]
    assert (lab.weights(job_id, 1) == lab.weights(job_id, 2)) == skip
    taken = Checkpoint.open(lab.events(job_id, "checkpoint")[-1].path).manifest.optimizer_steps
    assert taken == (0 if skip else 12)
    paid = lab.start(algorithm=algorithm, steps=1)
    lab.play_on(paid)
    assert lab.events(paid, "step")[0].metrics["skipped_updates"] == 0.0


def test_failed_episodes_are_left_out_named_and_counted(lab):
    environment = EnvironmentRef(id="test/Fickle-v0", kwargs={"failing": 0.3})
    job_id = lab.start(
        environment=environment,
        steps=1,
        max_failed_fraction=0.9,
        algorithm=GRPO(group_size=2, groups_per_step=12),
    )
    lab.play_on(job_id)
    step = lab.events(job_id, "step")[0]
    warning = lab.events(job_id, "warning")[0]
    assert 0 < step.failed_episodes == step.stop_reasons["environment_error"] == warning.count < 24
    assert warning.name == "environment_error"
    assert "the machine is broken" in warning.message
    assert "Traceback" in warning.message


@pytest.mark.parametrize("most", [0.1, 0.9])
def test_a_job_that_lost_many_episodes_says_so_when_it_is_complete(lab, most):
    environment = EnvironmentRef(id="test/Fickle-v0", kwargs={"failing": 0.3})
    algorithm = GRPO(group_size=2, groups_per_step=12)
    limits = {"max_failed_fraction": 1.0, "warn_failed_fraction": most}
    job_id = lab.start(environment=environment, steps=2, algorithm=algorithm, **limits)
    lab.play_on(job_id)
    assert lab.state(job_id) is JobState.COMPLETED
    failed = sum(step.failed_episodes for step in lab.events(job_id, "step"))
    lost = [event for event in lab.events(job_id, "warning") if event.name == "episodes_lost"]
    assert [(event.count, event.step) for event in lost] == ([(failed, 2)] if most == 0.1 else [])


def test_a_failed_episode_is_dropped_kept_or_played_again_as_the_job_says(lab):
    # Episodes of a group that fail leave the others to be compared.
    environment = EnvironmentRef(id="test/Fickle-v0", kwargs={"failing": 0.3})
    weights, retried = {}, {}
    for on_failure in ("drop", "keep", "retry:1"):
        job_id = lab.start(
            environment=environment,
            steps=1,
            on_failure=on_failure,
            max_failed_fraction=1.0,
            algorithm=GRPO(group_size=4, groups_per_step=6),
            deterministic=True,
        )
        lab.play_on(job_id)
        (step,) = lab.events(job_id, "step")
        assert lab.state(job_id) is JobState.COMPLETED
        assert 0 < step.failed_episodes < 24
        weights[on_failure], retried[on_failure] = lab.weights(job_id, 1), step.metrics["retried_episodes"]
        failed = step.failed_episodes
    # Its seed makes the environment fail again, so a retry ends as a drop does; it is counted.
    assert weights["drop"] == weights["retry:1"] != weights["keep"]
    assert retried == {"drop": 0.0, "keep": 0.0, "retry:1": failed}


def test_a_kept_failure_at_the_first_answer_is_compared_turn_by_turn(lab):
    job_id = lab.start(
        environment=EnvironmentRef(id="test/Fickle-v0", kwargs={"failing": 0.3}),
        steps=1,
        on_failure="keep",
        max_failed_fraction=1.0,
        algorithm=GRPO(group_size=4, groups_per_step=6, credit="turn"),
    )
    lab.submit(job_id, lab.play(lab.lease(job_id)))
    lab.until(job_id, lambda: lab.state(job_id).final)
    assert lab.state(job_id) is JobState.COMPLETED, lab.events(job_id, "state")[-1]
    (step,) = lab.events(job_id, "step")
    assert 0 < step.failed_episodes < 24
    assert step.turns == 24
    assert step.trained_tokens == step.sampled_tokens
    assert step.metrics["parity_max"] <= 1e-5


def test_an_environment_that_takes_its_process_down_costs_its_episodes_and_the_job_goes_on(
    lab, register_environment
):
    register_environment("test/Dies-v0", "tinkergym.testing.faults:Dies")
    job_id = lab.start(
        environment=EnvironmentRef(id="test/Dies-v0"),
        executor="process",
        steps=1,
        seed=0,
        max_failed_fraction=1.0,
    )
    lab.play_on(job_id)
    assert lab.state(job_id) is JobState.COMPLETED
    (step,) = lab.events(job_id, "step")
    # One of the two groups has an odd seed, at which the environment dies.
    assert step.stop_reasons == {"environment_error": 2, "terminated": 2}
    assert "ended with exit status 3" in lab.events(job_id, "warning")[0].message


class Twice(tg.TextEnv):
    """Asks twice and pays for short answers."""

    def start(self, options):
        self.left = 2
        return "say something"

    def reply(self, action):
        self.left -= 1
        return "again", -float(len(action)), self.left == 0


def test_a_job_that_drops_reasoning_learns_from_the_segments_that_it_leaves(
    lab, register_environment, monkeypatch
):
    register_environment("test/Twice-v0", Twice)
    # The tiny model does not think aloud, so here an answer counts as reasoning but for its first letter.
    monkeypatch.setattr(agent_loop, "without_reasoning", lambda answer, *, opened: answer[:1])
    job_id = lab.start(environment=EnvironmentRef(id="test/Twice-v0"), steps=1, reasoning="drop")
    requests = lab.lease(job_id)
    results = lab.play(requests)
    assert any(len(result.trajectory.segments) == 2 for result in results)
    lab.submit(job_id, results)
    lab.until_state(job_id, JobState.COMPLETED)
    assert lab.events(job_id, "step")[0].metrics["parity_max"] <= 1e-5
    kept = lab.start(environment=EnvironmentRef(id="test/Twice-v0"), steps=1)
    assert all(len(result.trajectory.segments) == 1 for result in lab.play(lab.lease(kept)))


def test_too_many_failed_episodes_fail_the_job_and_it_says_which(lab):
    job_id = lab.start(environment=EnvironmentRef(id="test/Fickle-v0", kwargs={"failing": 1.0}))
    lab.play_on(job_id)
    end = lab.events(job_id, "state")[-1]
    assert (end.state, end.error.type) == (JobState.FAILED, "TooManyFailedEpisodesError")
    assert "4 of the 4 episodes of step 1 failed" in end.error.message
    assert "the machine is broken" in end.error.message
    assert end.error.field == "max_failed_fraction"


@pytest.mark.parametrize(
    ("reason", "error", "shown", "hint"),
    [
        (
            StopReason.ENVIRONMENT_TIMEOUT,
            "step did not return within 1.0 s; it is here:\n  File 'env.py'\n    time.sleep(9)",
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
def test_a_job_that_its_failed_episodes_end_says_why_and_whose_fault_it_is(lab, reason, error, shown, hint):
    job_id = lab.start()
    failed = [
        result.model_copy(
            update={
                "trajectories": [result.trajectory.model_copy(update={"stop_reason": reason, "error": error})]
            }
        )
        for result in lab.play(lab.lease(job_id))
    ]
    lab.submit(job_id, failed)
    lab.until_state(job_id, JobState.FAILED)
    end = lab.events(job_id, "state")[-1]
    assert shown in end.error.message
    assert hint in end.error.hint


def test_records_of_rewards_too_large_to_compute_with_are_refused(lab):
    job_id = lab.start()
    huge = []
    for result in lab.play(lab.lease(job_id)):
        turns = [turn.model_copy(update={"reward": 1e308}) for turn in result.trajectory.turns]
        trajectory = result.trajectory.model_copy(update={"turns": turns})
        huge.append(result.model_copy(update={"trajectories": [trajectory]}))
    with pytest.raises(InvalidRequestError, match=r"turns\.0\.reward"):
        lab.submit(job_id, huge)


def test_a_job_can_be_cancelled_while_it_waits_for_its_client(lab):
    job_id = lab.start(client_timeout_seconds=0.2)
    lab.until_state(job_id, JobState.WAITING_FOR_CLIENT)
    lab.tenant.request_cancel(job_id)
    lab.until_state(job_id, JobState.CANCELLED)


def test_a_cancelled_job_keeps_what_it_learned(lab):
    job_id = lab.start(steps=5)
    lab.play_step(job_id)
    lab.lease(job_id)
    lab.tenant.request_cancel(job_id)
    lab.until_state(job_id, JobState.CANCELLED)
    assert [checkpoint.step for checkpoint in lab.events(job_id, "checkpoint")] == [1]
    assert sample(lab, job_id).policy_version == 1


def test_a_job_whose_environment_breaks_late_keeps_what_it_learned(lab):
    job_id = lab.start(steps=5)
    lab.play_step(job_id)
    broken = [
        result.model_copy(update={"trajectories": [failed(result.trajectory)]})
        for result in lab.play(lab.lease(job_id))
    ]
    lab.submit(job_id, broken)
    lab.until_state(job_id, JobState.FAILED)
    assert [checkpoint.step for checkpoint in lab.events(job_id, "checkpoint")] == [1]


def test_a_worker_that_died_between_the_last_checkpoint_and_the_end_leaves_nothing_to_play(lab, monkeypatch):
    last_words = lab.pool._store.set_state

    def die_before_the_end(lease, state, *others):
        if state is JobState.COMPLETED:
            raise LeaseLostError("as if it had been killed")
        return last_words(lease, state, *others)

    monkeypatch.setattr(lab.pool._store, "set_state", die_before_the_end)
    job_id = lab.start(steps=1)
    lab.play_step(job_id)
    lab.until(job_id, lambda: job_id not in lab.pool._threads)
    posted = []
    lab.replace_pool()
    monkeypatch.setattr(lab.pool._boards, "post", lambda *step: posted.append(step))
    lab.service.requeue_worker("pool-1", "it died")
    lab.pool.start_job(job_id)
    lab.until_state(job_id, JobState.COMPLETED)
    assert posted == []
    assert sample(lab, job_id).policy_version == 1


def test_drift_between_learner_and_engine_stops_the_job_before_it_learns(lab):
    job_id = lab.start(parity_threshold=1e-12)
    lab.play_on(job_id)
    end = lab.events(job_id, "state")[-1]
    assert (end.state, end.error.type) == (JobState.FAILED, "ParityError")
    assert lab.events(job_id, "step") == []


def test_a_last_version_that_did_not_arrive_in_the_engine_is_found_out_though_no_episode_plays_it(
    lab, publishes_wrongly
):
    publishes_wrongly(version=2)
    job_id = lab.start(steps=2)
    lab.play_on(job_id)
    end = lab.events(job_id, "state")[-1]
    assert (end.state, end.error.type) == (JobState.FAILED, "ParityError")
    assert [step.step for step in lab.events(job_id, "step")] == [1, 2]
    assert [checkpoint.step for checkpoint in lab.events(job_id, "checkpoint")] == [2]


@pytest.mark.parametrize("kind", ["truncated", "masked"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_correction_goes_by_the_kind_the_cap_and_the_level_that_were_asked_for(
    lab, monkeypatch, kind, level
):
    """The engine says of every token that it was less likely than it is, by the same factor."""
    submit, gap = TransformersEngine.submit, 0.5

    def lower(answer):
        said = [logprob - gap for logprob in answer.sampling_logprobs]
        return answer.model_copy(update={"sampling_logprobs": said})

    def submitted(self, requests, deliver):
        submit(self, requests, lambda answers: deliver([lower(answer) for answer in answers]))

    monkeypatch.setattr(TransformersEngine, "submit", submitted)
    weights = {}
    for cap in (1.25, 1.5, 100.0):
        algorithm = GRPO(
            group_size=3,
            groups_per_step=3,
            importance_correction=kind,
            importance_cap=cap,
            importance_level=level,
        )
        job_id = lab.start(steps=1, algorithm=algorithm, parity_threshold=1.0)
        lab.play_on(job_id)
        (step,) = lab.events(job_id, "step")
        weights[cap] = step.metrics["importance_weight_max"]
        # Four tokens make a sequence's ratio the fourth power of a token's.
        powers = 4 if level == "sequence" else 1
        assert step.metrics["importance_ratio_max"] == pytest.approx(np.exp(gap * powers), rel=1e-3)
    for cap in (1.25, 1.5):
        assert weights[cap] == pytest.approx(cap if kind == "truncated" else 0.0)
    assert weights[100.0] == pytest.approx(np.exp(gap * powers), rel=1e-3)


def test_a_job_whose_client_stays_away_gives_its_place_up_and_loses_nothing(make_lab):
    seeded = {"steps": 2, "seed": 7, "deterministic": True}
    undisturbed = make_lab("undisturbed")
    expected = undisturbed.start(**seeded)
    undisturbed.play_on(expected)
    lab = make_lab("parked", client_place_seconds=3.0)
    job_id = lab.start(**seeded)
    lab.play_step(job_id)
    requests = lab.lease(job_id)
    lab.submit(job_id, lab.play(requests)[:2])  # of the second step, and then nothing more
    lab.until(job_id, lambda: not lab.service.held_jobs())
    view = lab.tenant.get_job(job_id)
    assert (view.state, view.step) == (JobState.WAITING_FOR_CLIENT, 1)
    assert job_id in view.reason
    lab.service.client_came(job_id)
    # The scheduler, too, asks until a pool has the job: the thread that gave it up may not have ended yet.
    lab.until(job_id, lambda: lab.pool.start_job(job_id) or lab.service.held_jobs())
    lab.play_on(job_id)
    assert lab.weights(job_id, 2) == undisturbed.weights(expected, 2)


def test_a_silent_client_is_waited_for_and_welcomed_back(lab):
    job_id = lab.start(client_timeout_seconds=0.2, steps=1)
    lab.until_state(job_id, JobState.WAITING_FOR_CLIENT)
    requests = lab.lease(job_id)
    lab.until_state(job_id, JobState.RUNNING)
    lab.submit(job_id, lab.play(requests))
    lab.until_state(job_id, JobState.COMPLETED)


def test_a_job_that_was_given_to_another_worker_stops_at_once_and_writes_nothing_more(lab):
    job_id = lab.start()
    requests = lab.lease(job_id)
    results = lab.play(requests)
    assert lab.service.requeue_worker("pool-1", "taken away") == [job_id]
    other = lab.service.acquire(job_id, "another", 30.0, 0.0)
    with pytest.raises(LeaseLostError):
        lab.service.renew(dataclasses.replace(other, epoch=other.epoch - 1), 30.0, 0.0)
    lab.until(job_id, lambda: set(lab.submit(job_id, results)) == {"stale"})
    assert lab.service.episodes(job_id, 1) == []
    assert lab.state(job_id) is JobState.STARTING


def test_only_the_newest_checkpoints_are_kept(lab):
    job_id = lab.start(steps=4, checkpoint_every=1, keep_checkpoints=2)
    lab.play_on(job_id)
    views = lab.service.checkpoints(job_id)
    assert [view.step for view in views] == [3, 4]
    folder = Path(views[0].path).parent
    assert sorted(path.name for path in folder.iterdir()) == ["step-000003", "step-000004"]
    assert all(lab.service.episodes(job_id, step) == [] for step in (1, 2, 3, 4))


def test_after_going_back_behind_damaged_checkpoints_new_ones_are_kept(lab, written):
    job_id = lab.start(steps=4, checkpoint_every=1, keep_checkpoints=2)
    for made in (1, 2, 3):
        lab.play_step(job_id)
        lab.until(job_id, lambda made=made: len(lab.events(job_id, "checkpoint")) == made)
    # The oldest goes after the event of the newest.
    lab.until(job_id, lambda: [view.step for view in lab.service.checkpoints(job_id)] == [2, 3])
    lab.close_pool()
    damaged = [Path(view.path) for view in lab.service.checkpoints(job_id)]
    for path in damaged:
        (path / "optimizer.safetensors").write_bytes(b"rust")
    lab.start_pool()
    lab.pool.start_job(job_id)
    lab.play_step(job_id)
    lab.until(job_id, lambda: len(lab.events(job_id, "checkpoint")) == 4)
    # Those that are damaged go after the event of the new one.
    lab.until(job_id, lambda: [view.step for view in lab.service.checkpoints(job_id)] == [1])
    lab.close_pool()
    (view,) = lab.service.checkpoints(job_id)
    assert (Path(view.path) / "manifest.json").is_file()
    assert [(path / "optimizer.safetensors").read_bytes() for path in damaged] == [b"rust", b"rust"]
    lab.start_pool()
    # Who asks for the policy while no worker has the job gets the good one.
    assert written.answer(job_id, "say something") is not None
    lab.pool.start_job(job_id)
    lab.play_on(job_id)
    assert lab.state(job_id) is JobState.COMPLETED
    assert [view.step for view in lab.service.checkpoints(job_id)] == [3, 4]
    assert not damaged[0].exists()


def test_a_checkpoint_that_cannot_be_written_fails_the_job_with_the_reason(lab):
    folder = lab.config.jobs_dir
    shutil.rmtree(folder, ignore_errors=True)
    folder.write_text("in the way")
    job_id = lab.start(steps=1)
    lab.play_on(job_id)
    assert lab.events(job_id, "state")[-1].state is JobState.FAILED


def test_an_environment_that_takes_worker_after_worker_down_fails_the_job(lab):
    job_id = lab.start(rollout="server")
    for death in range(5):
        request = LeaseRequest(worker_id=f"env-{death}", max_episodes=10, wait_seconds=20.0)
        assert len(lab.transport(job_id).lease(request).episodes) == 4
        lab.pool.env_worker_ended(f"env-{death}")
    lab.until_state(job_id, JobState.FAILED)
    end = lab.events(job_id, "state")[-1]
    assert end.error.type == "EnvironmentCrashedError"
    assert "5 environment workers died while they played step 1" in end.error.message


def test_two_jobs_at_once_do_not_change_each_others_bits(lab):
    settings = {"deterministic": True, "environment": EnvironmentRef(id="board/TicTacToeVs-v0")}
    alone = lab.start(**settings)
    lab.play_on(alone)
    pair = [lab.start(**settings), lab.start(**settings, seed=1)]
    with ThreadPoolExecutor() as threads:
        list(threads.map(lab.play_on, pair))
    assert lab.weights(pair[0], 2) == lab.weights(alone, 2) != lab.weights(pair[1], 2)


def test_a_foreign_jobs_results_are_not_taken(lab):
    mine, other = lab.start(), lab.start()
    results = lab.play(lab.lease(other))
    assert set(lab.submit(mine, results)) == {"stale"}
    assert set(lab.submit(other, results)) == {"accepted"}


def test_workers_of_the_service_are_not_given_a_clients_episodes(lab):
    job_id = lab.start()
    request = LeaseRequest(worker_id="env", max_episodes=10, wait_seconds=0.0)
    lab.until_state(job_id, JobState.RUNNING)
    assert lab.transport("").lease(request).episodes == []


def failed(trajectory):
    return trajectory.model_copy(
        update={"terminated": False, "stop_reason": StopReason.ENVIRONMENT_ERROR, "error": "it broke"}
    )


def sample(lab, policy, version=None):
    arrived = []
    request = SampleRequest(
        request_id="r", policy=policy, policy_version=version, prompt_ids=[5, 6, 7], max_tokens=4, seed=1
    )
    sampler = lab.transport("").sampler()
    sampler.submit([request], arrived.extend)
    lab.until(policy, lambda: arrived)
    sampler.close()
    return arrived[0]
