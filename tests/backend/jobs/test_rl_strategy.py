from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tinkergym as tg
from backend.engines.transformers.transformers_engine import TransformersEngine
from backend.errors import LeaseLostError
from backend.learner.checkpoints import Checkpoint
from tests.backend.jobs.replay import that_learn_the_same
from tinkergym.agent import agent_loop
from tinkergym.algorithms import GRPO, RLOO, ReinforcePlusPlus
from tinkergym.schema.episodes import LeaseRequest
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import EnvironmentRef, FullParameters, LoRA
from tinkergym.schema.sampling import SampleRequest
from tinkergym.trajectory.trajectory import StopReason


@pytest.mark.parametrize(
    "adapter",
    [
        LoRA(rank=4),
        pytest.param(FullParameters(), marks=pytest.mark.full("rounds as an adapter")),
    ],
)
def test_trains_in_bfloat16_within_its_wider_threshold(lab, make_lab, adapter):
    rounded, first = make_lab("bfloat16", dtype="bfloat16"), []
    for one in (lab, rounded):
        job_id = one.start(adapter=adapter, steps=2)
        one.play_on(job_id)
        assert one.state(job_id) is JobState.COMPLETED, one.events(job_id, "state")[-1]
        steps = one.events(job_id, "step")
        first.append(steps[0].metrics["sampled_entropy"])
    # The same episodes, as far as rounding does not make other tokens of them.
    assert abs(first[1] - first[0]) > 1e-5
    assert max(step.metrics["parity_mean"] for step in steps) <= 2e-2
    assert rounded.weights(job_id, 1) != rounded.weights(job_id, 2)


@pytest.mark.parametrize(
    "adapter", [LoRA(rank=4), pytest.param(FullParameters(), marks=pytest.mark.full("goes as an adapter"))]
)
def test_trains_to_its_end_and_samples_its_policy_afterwards(lab, adapter):
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
    assert (lab.folder(checkpoint) / "manifest.json").is_file()
    assert sample(lab, job_id).policy_version == 2


def test_loads_policy_of_earlier_job_from_its_checkpoint(lab):
    job_id = lab.start(steps=1)
    lab.play_on(job_id)
    before = sample(lab, job_id)
    lab.replace_pool()
    after = sample(lab, job_id)
    assert (after.policy_version, after.token_ids) == (1, before.token_ids)
    assert after.sampling_logprobs == pytest.approx(before.sampling_logprobs, abs=1e-5)


def test_keeps_untrained_model_as_version_0_after_any_publish(lab):
    job_id = lab.start(steps=1, algorithm=GRPO(group_size=2, groups_per_step=2, learning_rate=0.1))
    lab.play_on(job_id)
    untrained, base = sample(lab, job_id, version=0), sample(lab, "nano")
    assert (untrained.policy_version, untrained.token_ids) == (0, base.token_ids)
    assert untrained.sampling_logprobs == pytest.approx(base.sampling_logprobs, abs=1e-5)
    assert untrained.sampling_logprobs != pytest.approx(sample(lab, job_id).sampling_logprobs, abs=1e-3)


def test_counts_what_a_script_handed_in_after_a_restart(jobs):
    job_id = jobs.start(rollout="script", deterministic=True)
    first, *others = jobs.lease(job_id)
    assert jobs.submit(job_id, jobs.play([first])) == ["accepted"]
    jobs.take_over(job_id)
    assert {request.episode_id for request in jobs.lease(job_id)} == {other.episode_id for other in others}


@pytest.mark.parametrize(
    "adapter", [LoRA(), pytest.param(FullParameters(), marks=pytest.mark.full("repeats as an adapter"))]
)
def test_repeats_same_bits_by_seed_in_lockstep_also_when_resumed(lab, adapter):
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


def test_changes_what_is_learned_by_every_training_setting(lab, monkeypatch):
    plain = {"group_size": 3, "groups_per_step": 3, "learning_rate": 1e-2}
    algorithms = [
        {},
        {"learning_rate": 2e-2},
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
        {"lr_schedule": "linear"},
        {"lr_schedule": "cosine"},
        {"warmup_steps": 3},
    ]
    others = [{"algorithm": GRPO(**plain | settings)} for settings in algorithms]
    others += [{"algorithm": other(**plain)} for other in (RLOO, ReinforcePlusPlus)]
    others += [{"shuffle_rewards": True}]
    assert that_learn_the_same(lab, monkeypatch, {"algorithm": GRPO(**plain)}, others) == []


def test_finds_settings_that_change_nothing_by_replay(lab, monkeypatch):
    same = [{}, {"keep_checkpoints": 5}]
    others = [*same, {"algorithm": GRPO(group_size=2, groups_per_step=2, learning_rate=0.5)}]
    assert that_learn_the_same(lab, monkeypatch, {}, others) == [same]


def test_changes_what_is_learned_by_every_initial_setting(lab):
    others = [{}, {"seed": 1}, {"adapter": LoRA(rank=4)}, {"adapter": LoRA(alpha=8)}]
    assert lab.that_learn_the_same(others) == []


def test_counts_learned_tokens_once(jobs):
    algorithm = GRPO(group_size=2, groups_per_step=12, updates_per_step=2, minibatches=2)
    sound = jobs.start(steps=1, algorithm=algorithm)
    jobs.play_on(sound)
    (step,) = jobs.events(sound, "step")
    assert step.trained_tokens == step.sampled_tokens > 0
    assert step.records is None
    environment = EnvironmentRef(id="test/Fickle-v0", kwargs={"failing": 0.3})
    fickle = jobs.start(environment=environment, steps=1, max_failed_fraction=1.0, algorithm=algorithm)
    jobs.play_on(fickle)
    (step,) = jobs.events(fickle, "step")
    assert step.failed_episodes
    assert 0 < step.trained_tokens < step.sampled_tokens


def test_warns_once_of_rewards_that_tell_no_episode_apart(jobs):
    job_id = jobs.start(environment=EnvironmentRef(id="test/Fickle-v0", kwargs={"pay": 0.0}), steps=3)
    jobs.play_on(job_id)
    (warning,) = jobs.events(job_id, "warning")
    assert (warning.name, warning.step) == ("nothing_to_compare", 1)
    told_apart = jobs.start(steps=1)
    jobs.play_on(told_apart)
    assert not jobs.events(told_apart, "warning")


@pytest.mark.parametrize(
    "skip", [True, pytest.param(False, marks=pytest.mark.full("updates by 0, as `test_adamw` does"))]
)
def test_leaves_policy_as_is_after_step_without_signal_counting_updates(lab, skip):
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
    taken = Checkpoint.open(lab.folder(lab.events(job_id, "checkpoint")[-1])).manifest.optimizer_steps
    assert taken == (0 if skip else 12)
    paid = lab.start(algorithm=algorithm, steps=1)
    lab.play_on(paid)
    assert lab.events(paid, "step")[0].metrics["skipped_updates"] == 0.0


def test_compares_kept_failure_at_its_first_completion_turn_by_turn(jobs):
    job_id = jobs.start(
        environment=EnvironmentRef(id="test/Fickle-v0", kwargs={"failing": 0.3}),
        steps=1,
        on_failure="keep",
        max_failed_fraction=1.0,
        algorithm=GRPO(group_size=4, groups_per_step=6, credit="turn"),
    )
    jobs.submit(job_id, jobs.play(jobs.lease(job_id)))
    jobs.until(job_id, lambda: jobs.state(job_id).final)
    assert jobs.state(job_id) is JobState.COMPLETED, jobs.events(job_id, "state")[-1]
    (step,) = jobs.events(job_id, "step")
    assert 0 < step.failed_episodes < 24
    assert step.turns == 24
    assert step.trained_tokens == step.sampled_tokens
    assert step.metrics["parity_max"] <= 1e-5


@pytest.mark.full("as in `test_environment_process` and `test_stall_watchdog`, in a job")
def test_loses_only_episodes_of_environment_that_kills_its_process(lab, register_environment):
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


def test_learns_from_the_segments_that_dropped_reasoning_leaves(lab, register_environment, monkeypatch):
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


def test_keeps_what_job_learned_when_environment_breaks_late(jobs):
    job_id = jobs.start(steps=5)
    jobs.play_step(job_id)
    broken = [
        result.model_copy(update={"trajectories": [failed(result.trajectory)]})
        for result in jobs.play(jobs.lease(job_id))
    ]
    jobs.submit(job_id, broken)
    jobs.until_state(job_id, JobState.FAILED)
    assert [checkpoint.step for checkpoint in jobs.events(job_id, "checkpoint")] == [1]


def test_leaves_nothing_to_play_after_death_past_last_checkpoint(lab, monkeypatch):
    last_words = lab.pool.store.set_state

    def die_before_the_end(lease, state, *others):
        if state is JobState.COMPLETED:
            raise LeaseLostError("as if it had been killed")
        return last_words(lease, state, *others)

    monkeypatch.setattr(lab.pool.store, "set_state", die_before_the_end)
    job_id = lab.start(steps=1)
    lab.play_step(job_id)
    lab.until(job_id, lambda: job_id not in lab.pool.jobs.threads)
    posted, killed = [], lab.site.pool_id
    lab.replace_pool()
    monkeypatch.setattr(lab.pool.boards, "post", lambda *step: posted.append(step))
    lab.service.requeue_jobs_of(killed, "it died")
    lab.pool.start_job(job_id)
    lab.until_state(job_id, JobState.COMPLETED)
    assert posted == []
    assert sample(lab, job_id).policy_version == 1


def test_stops_before_it_learns_from_a_drifted_engine(lab):
    job_id = lab.start(parity_threshold=1e-12)
    lab.play_on(job_id)
    end = lab.events(job_id, "state")[-1]
    assert (end.state, end.error.type) == (JobState.FAILED, "ParityError")
    assert lab.events(job_id, "step") == []


def test_detects_last_version_missing_in_the_engine(lab, publishes_wrongly):
    publishes_wrongly(version=2)
    job_id = lab.start(steps=2)
    lab.play_on(job_id)
    end = lab.events(job_id, "state")[-1]
    assert (end.state, end.error.type) == (JobState.FAILED, "ParityError")
    assert [step.step for step in lab.events(job_id, "step")] == [1, 2]
    assert [checkpoint.step for checkpoint in lab.events(job_id, "checkpoint")] == [2]


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        ("truncated", "token"),
        *(
            pytest.param(kind, level, marks=pytest.mark.full("three jobs; `test_importance` has all weights"))
            for kind, level in (("truncated", "sequence"), ("masked", "token"), ("masked", "sequence"))
        ),
    ],
)
def test_corrects_by_the_kind_cap_and_level_asked_for(lab, monkeypatch, kind, level):
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


def test_keeps_bits_of_two_simultaneous_jobs(lab):
    settings = {"deterministic": True, "environment": EnvironmentRef(id="board/TicTacToeVs-v0")}
    alone = lab.start(**settings)
    lab.play_on(alone)
    pair = [lab.start(**settings), lab.start(**settings, seed=1)]
    with ThreadPoolExecutor() as threads:
        list(threads.map(lab.play_on, pair))
    assert lab.weights(pair[0], 2) == lab.weights(alone, 2) != lab.weights(pair[1], 2)


def test_rejects_results_of_a_foreign_job(lab):
    mine, other = lab.start(), lab.start()
    results = lab.play(lab.lease(other))
    assert set(lab.submit(mine, results)) == {"stale"}
    assert set(lab.submit(other, results)) == {"accepted"}


def test_denies_workers_of_the_service_a_clients_episodes(lab):
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
