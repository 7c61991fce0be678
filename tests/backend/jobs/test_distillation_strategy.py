from __future__ import annotations

import pytest

from backend.compute.weights import weights_sha256
from backend.learner.learner import Learner
from backend.learner.spikes import SpikeWatch
from backend.learner.token_loss import policy_loss
from backend.settings.served_models import PACKAGED_MODELS
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import EnvironmentRef, FullParameters, LoRA
from tinkergym.schema.parsing import parse_spec

SAYS = [{"prompt": "say something", "completion": "hello"}]


def distill(lab, teacher, **settings):
    spec = {
        "kind": "distillation",
        "environment": EnvironmentRef(id="test/Fickle-v0"),
        "teacher": teacher,
        "steps": 4,
        "episodes_per_step": 8,
        "sampling": {"max_turn_tokens": 8},
        "rollout": "client",
        "client_timeout_seconds": 3600.0,
        **settings,
    }
    job_id = lab.tenant.create_job(parse_spec(spec), {}).job_id
    lab.start_job(job_id)
    return job_id


@pytest.mark.parametrize(
    "adapter", [LoRA(rank=8), pytest.param(FullParameters(), marks=pytest.mark.full("as an adapter"))]
)
def test_learns_to_say_what_the_teacher_finds_likely(lab, written, adapter):
    teacher = written.run("sft", SAYS, steps=15, batch_size=1, learning_rate=1e-2)
    # At rates where the divergence swings from step to step, the processor decides where it ends.
    rate = 4e-3 if adapter.kind == "lora" else 4e-4
    settings = {"steps": 5, "episodes_per_step": 16, "learning_rate": rate, "adapter": adapter, "seed": 2}
    student = distill(lab, f"{teacher}@15", **settings)
    lab.play_on(student)
    assert lab.state(student) is JobState.COMPLETED, lab.events(student, "state")[-1]
    first, *_, last = lab.events(student, "step")
    assert last.metrics["reverse_kl"] < first.metrics["reverse_kl"] - 1
    # What the student has unlearned has logprobs of -20 and less, which float32 rounds by 1e-6 at every sum.
    assert max(step.metrics["parity_mean"] for step in (first, last)) <= 1e-5
    assert max(step.metrics["parity_max"] for step in (first, last)) <= 1e-4


def test_learns_nothing_from_a_teacher_that_is_the_student(lab):
    student = distill(lab, "nano", steps=1)
    lab.play_on(student)
    (step,) = lab.events(student, "step")
    assert step.metrics["reverse_kl"] == pytest.approx(0.0, abs=1e-5)
    assert step.trained_tokens == step.sampled_tokens > 0
    assert step.records is None


def test_reports_spike_of_the_first_of_several_updates(lab, monkeypatch):
    said = [{"loss_spike": 12.0}]

    def observe(self, value, *, name, least=0.0):
        return said.pop() if said and name == "loss_spike" else {}

    monkeypatch.setattr(SpikeWatch, "observe", observe)
    student = distill(lab, "nano", steps=1, updates_per_step=2)
    lab.play_on(student)
    (step,) = lab.events(student, "step")
    assert step.metrics["loss_spike"] == 12.0


def test_weighs_samples_by_how_likely_they_still_are_per_update(lab, written, monkeypatch):
    """What the job does is done again by hand, with the loss that is named here."""
    teacher = written.run("sft", SAYS, steps=3, batch_size=1, learning_rate=1e-2)
    learned_from, forward_backward = [], Learner.forward_backward

    def noted(self, policy_id, sequences, *arguments, **settings):
        learned_from.append(list(sequences))
        return forward_backward(self, policy_id, sequences, *arguments, **settings)

    rate, adapter = 1e-2, LoRA(rank=4)
    with monkeypatch.context() as patch:
        patch.setattr(Learner, "forward_backward", noted)
        student = distill(
            lab, f"{teacher}@3", steps=1, updates_per_step=3, learning_rate=rate, adapter=adapter, seed=5
        )
        lab.play_on(student)
    assert len(learned_from) == 3
    by_hand = Learner(PACKAGED_MODELS["nano"], cpu_threads=1)
    by_hand.create_policy("p", adapter, seed=5)
    for sequences in learned_from:
        by_hand.forward_backward("p", sequences, policy_loss(loss="importance_sampling", aggregation="token"))
        by_hand.optim_step("p", learning_rate=rate)
    assert weights_sha256(by_hand.weights("p")) == lab.weights(student, 1)


@pytest.mark.parametrize("on_failure", ["drop", "keep"])
def test_judges_what_failed_students_said_if_job_keeps_failures(lab, on_failure):
    student = distill(
        lab,
        "nano",
        steps=1,
        environment=EnvironmentRef(id="test/Fickle-v0", kwargs={"failing": 0.5}),
        max_failed_fraction=1.0,
        on_failure=on_failure,
    )
    lab.play_on(student)
    (step,) = lab.events(student, "step")
    assert 0 < step.failed_episodes < 8
    assert (step.trained_tokens == step.sampled_tokens) == (on_failure == "keep")


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_judges_by_teacher_and_learner_at_the_sampling_temperature(lab, temperature):
    student = distill(lab, "nano", steps=1, sampling={"max_turn_tokens": 8, "temperature": temperature})
    lab.play_on(student)
    (step,) = lab.events(student, "step")
    assert step.metrics["reverse_kl"] == pytest.approx(0.0, abs=1e-5)
    assert step.metrics["teacher_gap_max"] == pytest.approx(0.0, abs=1e-4)
    assert step.metrics["parity_mean"] <= 1e-5


def test_stops_a_distillation_before_it_learns_from_drifted_engine(lab):
    student = distill(lab, "nano", parity_threshold=1e-12)
    lab.play_on(student)
    end = lab.events(student, "state")[-1]
    assert (end.state, end.error.type) == (JobState.FAILED, "ParityError")
    assert lab.events(student, "step") == []


def test_changes_what_is_learned_by_every_distillation_setting(jobs):
    changes = [
        {},
        {},
        {"learning_rate": 2e-3},
        {"lr_schedule": "linear"},
        {"lr_schedule": "cosine"},
        {"warmup_steps": 1},
        {"updates_per_step": 2},
        {"max_grad_norm": 1e-9},
        {"weight_decay": 0.5},
        {"sampling": {"max_turn_tokens": 4, "temperature": 1.5}},
        {"seed": 1},
    ]
    learned = {}
    for settings in changes:
        # Three steps, so that a schedule shows; lockstep, so that nothing but the setting can differ.
        common = {
            "steps": 3,
            "episodes_per_step": 4,
            "deterministic": True,
            "sampling": {"max_turn_tokens": 4},
        }
        student = distill(jobs, "teacher", **common | settings)
        jobs.play_on(student)
        assert jobs.state(student) is JobState.COMPLETED
        learned.setdefault(jobs.weights(student, 3), []).append(settings)
        rates = [step.metrics["learning_rate"] for step in jobs.events(student, "step")]
        factors = {"linear": [1, 2 / 3, 1 / 3], "cosine": [1, 0.75, 0.25]}.get(
            settings.get("lr_schedule"), [0.5, 1, 1] if "warmup_steps" in settings else [1, 1, 1]
        )
        assert rates == pytest.approx([settings.get("learning_rate", 1e-3) * factor for factor in factors])
    # The same twice, so that what differs does so by its setting.
    assert [same for same in learned.values() if len(same) > 1] == [[{}, {}]]
