"""Jobs that pause, run out of budget and get other settings on the way: nothing is lost, no bit differs."""

from __future__ import annotations

import json

import pytest

from tests.backend.scripted_policy import ScriptedPolicy
from tinkergym.algorithms import GRPO
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.own_loop import PolicySpec
from tinkergym.schema.jobs.parts import Budget
from tinkergym.schema.policy_calls import ForwardBackward, Logprobs, OptimStep

ROWS = [{"prompt": f"{a} and {b}?", "completion": f"{a + b}, I think"} for a in range(4) for b in range(4)]
PAIRS = [{"prompt": f"{a}?", "chosen": f"it is {a}", "rejected": f"no, {a + 1}"} for a in range(8)]

SEEDED = {"steps": 3, "seed": 7, "deterministic": True}


def paused(lab, job_id):
    """Pause a job, and wait until its worker has given it up."""
    lab.tenant.request_pause(job_id)
    lab.until_state(job_id, JobState.PAUSED)
    assert not lab.service.held_jobs()


def resumed(lab, job_id):
    """Resume it, and have the worker that is there take it."""
    lab.tenant.request_resume(job_id)
    # The scheduler, too, asks until a pool has the job: the thread that gave it up may not have ended yet.
    lab.until(job_id, lambda: lab.start_job(job_id) or lab.service.held_jobs() or lab.state(job_id).final)


def recorded(lab, job_id, step):
    lab.until(job_id, lambda: lab.service.job(job_id).step >= step)


@pytest.fixture
def smooth(jobs):
    job_id = jobs.start(**SEEDED)
    jobs.play_on(job_id)
    return jobs.weights(job_id, 3)


def test_resumes_elsewhere_with_same_bits_after_pause_within_a_step(jobs, smooth):
    job_id = jobs.start(**SEEDED)
    jobs.play_step(job_id)
    jobs.play_step(job_id)
    recorded(jobs, job_id, 2)
    jobs.submit(job_id, jobs.play(jobs.lease(job_id))[:2])  # of the third, and then nothing more
    paused(jobs, job_id)
    assert [view.step for view in jobs.service.checkpoints(job_id)] == [2]
    assert jobs.service.job(job_id).reason.startswith("after step 2")
    # Another job uses the place, and a restart changes nothing.
    other = jobs.start(steps=1)
    jobs.play_on(other)
    jobs.replace_worker()
    assert jobs.state(job_id) is JobState.PAUSED
    resumed(jobs, job_id)
    jobs.play_on(job_id)
    assert jobs.weights(job_id, 3) == smooth


def test_finishes_step_first_when_paused_while_learning(jobs, held):
    held.hold_at = 2
    job_id = jobs.start(**SEEDED)
    jobs.play_step(job_id)
    jobs.play_step(job_id)
    assert held.reached.wait(120)
    jobs.tenant.request_pause(job_id)
    jobs.worker.beat()
    held.go_on.set()
    jobs.until_state(job_id, JobState.PAUSED)
    assert [view.step for view in jobs.service.checkpoints(job_id)] == [2]


@pytest.mark.parametrize(("kind", "rows"), [("sft", ROWS), ("preference", PAIRS)])
def test_pauses_and_resumes_written_data_with_the_same_bits(jobs, written_jobs, held, kind, rows):
    settings = {"steps": 6, "batch_size": 3, "held_out": 0.2}
    held.go_on.set()
    smooth = written_jobs.run(kind, rows, **settings)
    held.go_on.clear()
    held.reached.clear()
    held.hold_at, held.batches = 3, 0
    job_id = written_jobs.start(kind, rows, **settings)
    assert held.reached.wait(60)
    jobs.tenant.request_pause(job_id)
    jobs.worker.beat()
    held.go_on.set()
    jobs.until_state(job_id, JobState.PAUSED)
    step = jobs.service.job(job_id).step
    assert 0 < step < 6
    assert [view.step for view in jobs.service.checkpoints(job_id)] == [step]
    resumed(jobs, job_id)
    jobs.until(job_id, lambda: jobs.state(job_id).final)
    assert jobs.weights(job_id, 6) == jobs.weights(smooth, 6)


def test_holds_calls_of_paused_policy_and_runs_them_once(lab):
    calls = lab.store.policy_calls()
    job_id = lab.tenant.create_job(PolicySpec(), {}).job_id
    lab.pool.start_job(job_id)
    sequence = {"token_ids": [65, 66, 67, 68]}
    wanted = [ForwardBackward(sequences=[sequence]), OptimStep(learning_rate=1e-2)]
    wanted.append(Logprobs(sequences=[sequence]))
    calls.add(job_id, 1, wanted[0])
    lab.pool.routes.wait_for_call(job_id, 1, 120.0)
    paused(lab, job_id)
    for seq in (2, 3):
        calls.add(job_id, seq, wanted[seq - 1])
    assert calls.result(job_id, 2) is None
    resumed(lab, job_id)
    lab.until(job_id, lambda: calls.result(job_id, 3))
    assert calls.result(job_id, 2).skipped is False
    assert lab.service.job(job_id).used_tokens == 3


# --- budgets ---


@pytest.mark.parametrize("kind", ["rl", "sft"])
def test_pauses_while_its_tokens_are_used_up(jobs, written_jobs, kind):
    if kind == "rl":
        job_id = jobs.start(steps=3, budget=Budget(tokens=1))
        jobs.play_step(job_id)
    else:
        job_id = written_jobs.start("sft", ROWS, steps=3, budget=Budget(tokens=1))
    jobs.until_state(job_id, JobState.PAUSED)
    view = jobs.service.job(job_id)
    assert (view.step, view.used_tokens > 1) == (1, True)
    assert "budget" in view.reason
    jobs.tenant.change_settings(job_id, {"budget": {"tokens": 10**6}})
    resumed(jobs, job_id)
    if kind == "rl":
        jobs.play_on(job_id)
    jobs.until_state(job_id, JobState.COMPLETED)
    steps = jobs.events(job_id, "step")
    assert jobs.service.job(job_id).used_tokens == sum(s.sampled_tokens + s.trained_tokens for s in steps)
    assert [step.metrics["used/tokens"] for step in steps][-1] == jobs.service.job(job_id).used_tokens
    assert steps[-1].metrics["used/hours"] > 0


def test_pauses_job_when_its_hours_are_used_up(jobs):
    job_id = jobs.start(steps=3, budget=Budget(hours=1e-6))
    jobs.until_state(job_id, JobState.PAUSED)
    assert "hours are used" in jobs.service.job(job_id).reason


# --- settings ---


def test_keeps_changed_setting_the_same_for_killed_and_resumed_job(jobs, smooth):
    learned = []
    for is_killed in (False, True):
        job_id = jobs.start(**SEEDED)
        jobs.play_step(job_id)
        recorded(jobs, job_id, 1)
        jobs.tenant.change_settings(job_id, {"learning_rate": 5e-3, "entropy_coefficient": 0.05})
        jobs.play_step(job_id)
        recorded(jobs, job_id, 2)
        if is_killed:
            jobs.replace_worker()
            jobs.start_job(job_id)
        jobs.play_on(job_id)
        (event,) = jobs.events(job_id, "update")
        assert (event.from_step, {change.name for change in event.changes}) == (
            2,
            {"learning_rate", "entropy_coefficient"},
        )
        rates = {step.step: step.metrics["learning_rate"] for step in jobs.events(job_id, "step")}
        assert rates == {1: 1e-3, 2: 5e-3, 3: 5e-3}
        learned.append(jobs.weights(job_id, 3))
    assert learned[0] == learned[1] != smooth


def test_applies_another_rate_to_written_data_from_the_next_step(lab, written):
    job_id = written.start_later("sft", ROWS, steps=3, lr_schedule="constant")
    lab.tenant.change_settings(job_id, {"learning_rate": 5e-3})
    lab.pool.start_job(job_id)
    lab.until(job_id, lambda: lab.state(job_id).final)
    assert [step.metrics["learning_rate"] for step in lab.events(job_id, "step")] == [5e-3] * 3
    # The certificate has the rates that were used, and which base model they were used on.
    assert [json.loads(fact)["learning_rate"] for fact in lab.tenant.facts(job_id, "step")] == [5e-3] * 3
    (attempt,) = map(json.loads, lab.tenant.facts(job_id, "attempt"))
    (checkpoint,) = lab.tenant.checkpoints(job_id)
    manifest = json.loads((lab.folder(checkpoint) / "manifest.json").read_text())
    assert attempt["model_fingerprint"] == manifest["model_fingerprint"] != ""


def test_passes_every_changed_setting_of_update_to_learner(jobs):
    used = []

    class Noting(ScriptedPolicy):
        def forward_backward(self, sequences, loss, *, totals=None):
            used.append({"kl_coefficient": loss.token_losses.__self__.kl_coefficient})
            return super().forward_backward(sequences, loss, totals=totals)

        def optim_step(self, **settings):
            used[-1] |= {name: settings[name] for name in ("max_grad_norm", "weight_decay")}
            return super().optim_step(**settings)

    jobs.policy_class = Noting
    before = {"kl_coefficient": 0.1, "max_grad_norm": 1.0, "weight_decay": 0.0}
    after = {"kl_coefficient": 0.5, "max_grad_norm": 0.25, "weight_decay": 0.01}
    job_id = jobs.start(**SEEDED | {"steps": 2}, algorithm=GRPO(group_size=2, groups_per_step=2, **before))
    jobs.play_step(job_id)
    recorded(jobs, job_id, 1)
    jobs.tenant.change_settings(job_id, after)
    jobs.play_on(job_id)
    assert used == [before, after]
