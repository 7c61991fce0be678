from __future__ import annotations

import pytest

from backend.learner.spikes import SpikeWatch
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import FullParameters, LoRA
from tinkergym.trajectory.trajectory import ONLY_AGENT

CANARY = [
    {"prompt": f"{word}?", "completion": reply}
    for word, reply in [("sky", "blue"), ("grass", "green"), ("snow", "white"), ("coal", "black")]
]


ROWS = [{"prompt": f"{a} and {b}?", "completion": f"{a + b}, I think"} for a in range(4) for b in range(4)]
PAIRS = [{"prompt": f"{a}?", "chosen": f"it is {a}", "rejected": f"no, {a + 1}"} for a in range(8)]


def lost_after(lab, job_id, step):
    """Take the worker away once the job has recorded this step, as a kill does: nothing more is saved."""
    lab.until(job_id, lambda: lab.service.job(job_id).step >= step)
    lab.take_over(job_id)
    lab.until(job_id, lambda: lab.state(job_id).final)
    assert lab.service.job(job_id).attempt == 2


def test_ends_with_same_bits_after_losing_its_worker(lab, written):
    repeats_after_a_kill(lab, written, "sft", ROWS, adapter=FullParameters())


@pytest.mark.parametrize(("kind", "rows"), [("sft", ROWS), ("preference", PAIRS)])
def test_repeats_what_a_lost_worker_had_not_saved(jobs, written_jobs, kind, rows):
    repeats_after_a_kill(jobs, written_jobs, kind, rows)


def repeats_after_a_kill(lab, written, kind, rows, **settings):
    settings = {"steps": 5, "batch_size": 3, "checkpoint_every": 2, "held_out": 0.2, **settings}
    smooth = written.run(kind, rows, **settings)
    broken = written.start(kind, rows, **settings)
    lost_after(lab, broken, 3)
    assert lab.weights(broken, 5) == lab.weights(smooth, 5)
    losses = [
        {step.step: (step.loss, step.metrics.get("eval/loss")) for step in lab.events(job_id, "step")}
        for job_id in (smooth, broken)
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(("kind", "rows", "version"), [("sft", ROWS, 4), ("preference", PAIRS, 0)])
def test_detects_by_few_tokens_weights_missing_from_the_engine(
    lab, written, publishes_wrongly, kind, rows, version
):
    publishes_wrongly(version=version)
    job_id = written.start(kind, rows, steps=6, batch_size=3, checkpoint_every=4, adapter=FullParameters())
    lab.until_state(job_id, JobState.FAILED)
    assert lab.events(job_id, "state")[-1].error.type == "ParityError"


@pytest.mark.parametrize(("kind", "rows"), [("sft", ROWS), ("preference", PAIRS)])
def test_measures_drift_of_a_published_version(lab, written, kind, rows):
    job_id = written.run(kind, rows, steps=4, batch_size=3, checkpoint_every=2)
    drift = {step.step: step.metrics.get("parity_mean") for step in lab.events(job_id, "step")}
    assert {step for step, mean in drift.items() if mean is not None} == {2, 4}
    assert max(drift[2], drift[4]) <= 1e-5


@pytest.mark.parametrize(("kind", "rows"), [("sft", ROWS), ("preference", PAIRS)])
def test_reports_loss_spike_as_metric_and_warning(lab, written, kind, rows, monkeypatch):
    def observe(self, value, *, name, least=0.0):
        return {name: value} if name == "loss_spike" else {}

    monkeypatch.setattr(SpikeWatch, "observe", observe)
    job_id = written.run(kind, rows, steps=1, batch_size=3)
    (step,) = lab.events(job_id, "step")
    assert step.metrics["loss_spike"] == step.loss
    assert [warning.name for warning in lab.events(job_id, "warning")] == ["loss_spike"]


def test_runs_jobs_of_different_kinds_on_one_pool_undisturbed(lab, written):
    def start(kind):
        if kind == "rl":
            return lab.start(deterministic=True, steps=2)
        rows = ROWS if kind == "sft" else PAIRS
        return written.start(kind, rows, steps=4, batch_size=4, adapter=LoRA(rank=4 if kind == "sft" else 8))

    def finish(job_id):
        if lab.service.job(job_id).spec.kind == "rl":
            lab.play_on(job_id)
        lab.until(job_id, lambda: lab.state(job_id).final)
        return lab.weights(job_id, lab.service.job(job_id).policy_version)

    kinds = ("sft", "rl", "preference")
    alone = [finish(start(kind)) for kind in kinds]
    together = [finish(job_id) for job_id in [start(kind) for kind in kinds]]
    assert together == alone


def test_keeps_what_a_cancelled_job_learned(jobs, written_jobs):
    job_id = written_jobs.start("sft", ROWS, steps=100_000)
    jobs.until(job_id, lambda: jobs.service.job(job_id).step >= 3)
    jobs.tenant.request_cancel(job_id)
    jobs.until(job_id, lambda: jobs.state(job_id).final)
    assert jobs.state(job_id) is JobState.CANCELLED
    (checkpoint,) = jobs.events(job_id, "checkpoint")
    assert checkpoint.step == jobs.service.job(job_id).step


def test_measures_held_out_part_without_training_on_it(lab, written):
    job_id = written.run("sft", ROWS, steps=9, batch_size=4, held_out=0.25, eval_every=4)
    steps = lab.events(job_id, "step")
    assert [step.step for step in steps if "eval/loss" in step.metrics] == [1, 4, 8, 9]
    assert steps[-1].metrics["epoch"] == 3.0  # of the 12 that are left
    apart = written.upload("sft", ROWS[:2])
    other = written.run("sft", ROWS[2:], steps=2, batch_size=4, eval_data=apart)
    assert "eval/loss" in lab.events(other, "step")[0].metrics


def test_measures_held_out_conversations_as_those_of_a_step(lab, written, monkeypatch):
    # In parts of 2, 2 and 1; the next step trains on the same tokens with the same policy.
    monkeypatch.setattr("backend.jobs.sft_job._MEASURED_AT_ONCE", 2)
    rows = [{"prompt": f"{n}?", "completion": "ab" * (3 * n + 1)} for n in range(5)]
    settings = {"steps": 2, "batch_size": 5, "learning_rate": 2e-3, "eval_data": written.upload("sft", rows)}
    first, second = lab.events(written.run("sft", rows, **settings), "step")
    assert first.metrics["eval/loss"] == pytest.approx(second.loss, rel=1e-4)
    assert first.loss > second.loss + 1e-3


@pytest.mark.parametrize(
    "adapter",
    [LoRA(rank=4), pytest.param(FullParameters(), marks=pytest.mark.full("continues as an adapter"))],
)
def test_samples_and_continues_with_what_was_written(lab, written, adapter):
    rate = 1e-2 if adapter.kind == "lora" else 2e-3
    common = {"batch_size": 4, "learning_rate": rate, "adapter": adapter}
    first = written.run("sft", CANARY, steps=40, **common)
    steps = lab.events(first, "step")
    assert [step.step for step in steps] == list(range(1, 41))
    assert steps[-1].loss < 0.1 < 1 < steps[0].loss
    assert [written.answer(first, row["prompt"]) for row in CANARY] == [r["completion"] for r in CANARY]
    second = written.run("sft", CANARY, steps=1, initial_policy=f"{first}@40", **common)
    assert lab.events(second, "step")[0].loss < 0.2
    assert [checkpoint.step for checkpoint in lab.events(second, "checkpoint")] == [0, 1]
    rl = lab.start(steps=1, initial_policy=f"{first}@40", adapter=adapter)
    requests = lab.lease(rl)
    assert {request.seats[ONLY_AGENT].policy_version for request in requests} == {0}
    # Version 0 of this job is what it began with, not the model.
    assert written.answer(rl, "snow?") == "white"
    lab.submit(rl, lab.play(requests))
    lab.until_state(rl, JobState.COMPLETED)
    assert lab.events(rl, "step")[0].metrics["parity_max"] <= 1e-5


def test_fails_job_whose_initial_policy_is_gone_with_a_hint(lab, written):
    first = written.run("sft", CANARY, steps=1)
    job_id = written.start("sft", CANARY, initial_policy=f"{first}@7")
    lab.until(job_id, lambda: lab.state(job_id).final)
    end = lab.events(job_id, "state")[-1]
    assert (end.state, end.error.type, end.error.field) == (
        JobState.FAILED,
        "NotFoundError",
        "initial_policy",
    )


def test_changes_what_is_learned_by_every_setting_of_training(jobs, written_jobs):
    plain = {"steps": 3, "batch_size": 3, "learning_rate": 1e-2}
    changes = [
        {},
        {"learning_rate": 2e-2},
        {"lr_schedule": "constant"},
        {"lr_schedule": "cosine"},
        {"warmup_steps": 1},
        {"aggregation": "sequence"},
        {"max_grad_norm": 1e-9},
        {"weight_decay": 0.5},
        {"seed": 1},
        {"shuffle": False},
        {"held_out": 0.5},
        {"batch_size": 4},
        {"adapter": LoRA(rank=4)},
    ]
    # Answers of unequal length, or both aggregations would be one.
    rows = [{"prompt": f"{n}?", "completion": "so " * n + "."} for n in range(12)]
    learned = {}
    for change in changes:
        job_id = written_jobs.run("sft", rows, **{**plain, **change})
        learned.setdefault(jobs.weights(job_id, 3), []).append(change)
    assert [same for same in learned.values() if len(same) > 1] == []
