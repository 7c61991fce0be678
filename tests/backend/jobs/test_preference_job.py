from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from backend.jobs.dataset_loop import WrittenDataJob
from backend.learner.learner import Learner
from backend.settings.served_models import PACKAGED_MODELS
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import FullParameters, LoRA
from tinkergym.schema.preference_losses import DPO, IPO, ORPO, Hinge, SimPO

PAIRS = [
    {"prompt": f"{word}?", "chosen": chosen, "rejected": rejected}
    for word, chosen, rejected in [
        ("sky", "blue", "red"),
        ("grass", "green", "pink"),
        ("snow", "white", "brown"),
        ("coal", "black", "yellow"),
    ]
]


def test_makes_chosen_answers_win_and_margin_grow(lab, written):
    job_id = written.run(
        "preference", PAIRS, steps=12, batch_size=4, learning_rate=2e-3, adapter=LoRA(rank=8)
    )
    first, *_, last = lab.events(job_id, "step")
    # Before its first step the policy is its own reference.
    assert first.loss == pytest.approx(0.693147, abs=1e-5)
    assert first.metrics["reward_margin"] == pytest.approx(0.0, abs=1e-5)
    assert last.metrics["accuracy"] == 1.0
    assert last.metrics["reward_margin"] > 0.1
    assert last.loss < first.loss


SMOOTH = DPO(label_smoothing=0.1)
FORMULA = pytest.mark.full("`test_preference_loss` has its values and its slope")


@pytest.mark.parametrize(
    "loss", [SimPO(), ORPO(), *(pytest.param(loss, marks=FORMULA) for loss in (IPO(), Hinge(), SMOOTH))]
)
def test_separates_chosen_from_rejected_answers_by_every_loss(lab, written, loss):
    job_id = written.run("preference", PAIRS, steps=3, batch_size=4, learning_rate=2e-3, loss=loss)
    first, *_, last = lab.events(job_id, "step")
    assert last.loss < first.loss
    if isinstance(loss, ORPO):  # by its weights it is first of all about the chosen answer
        assert last.metrics["logprob_chosen"] > first.metrics["logprob_chosen"]
    else:
        assert last.metrics["reward_margin"] > first.metrics["reward_margin"]


def pair_loss(loss, chosen, rejected):
    """A pair's loss, written out, at the policy that is its own reference; of sums and means of logprobs."""
    log_sigmoid = torch.nn.functional.logsigmoid
    over = [answer.sum() - answer.sum().detach() for answer in (chosen, rejected)]
    margin = over[0] - over[1]
    match loss:
        case DPO():
            return -log_sigmoid(loss.beta * margin)
        case IPO():
            return (margin - 1 / (2 * loss.beta)) ** 2
        case Hinge():
            return torch.relu(1 - loss.beta * margin)
        case SimPO():
            return -log_sigmoid(loss.beta * (chosen.mean() - rejected.mean()) - loss.gamma)
    odds = [mean - torch.log1p(-mean.exp()) for mean in (chosen.mean(), rejected.mean())]
    return -chosen.mean() - loss.odds_weight * log_sigmoid(odds[0] - odds[1])


@pytest.mark.parametrize(
    "loss", [DPO(), SimPO(), ORPO(), *(pytest.param(loss, marks=FORMULA) for loss in (IPO(), Hinge()))]
)
def test_has_gradient_of_the_mean_over_pairs_by_the_formula(lab, written, monkeypatch, loss):
    seen, forward_backward = [], Learner.forward_backward

    def noted(self, policy_id, sequences, *arguments, **settings):
        seen.extend(sequences)
        return forward_backward(self, policy_id, sequences, *arguments, **settings)

    monkeypatch.setattr(Learner, "forward_backward", noted)
    settings = {"steps": 1, "batch_size": 4, "loss": loss, "adapter": FullParameters(), "learning_rate": 1e-6}
    job_id = written.run("preference", PAIRS, **settings)
    (step,) = lab.events(job_id, "step")
    model = AutoModelForCausalLM.from_pretrained(PACKAGED_MODELS["nano"]).eval()
    answers = []
    for sequence in seen:
        table = model(torch.tensor([sequence.token_ids])).logits[0].log_softmax(-1)
        places = np.flatnonzero(sequence.loss_mask)
        answers.append(table[places - 1, np.asarray(sequence.token_ids)[places]])
    assert len(answers) == 8
    assert {len(chosen) for chosen in answers[::2]} != {len(rejected) for rejected in answers[1::2]}
    total = sum(pair_loss(loss, *answers[at : at + 2]) for at in range(0, 8, 2)) / 4
    total.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    assert step.loss == pytest.approx(float(total.detach()), rel=1e-4)
    assert step.metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-3)


def test_measures_what_is_held_out_without_training_on_it(lab, written):
    job_id = written.run("preference", PAIRS * 2, steps=4, batch_size=2, held_out=0.5, eval_every=2)
    steps = lab.events(job_id, "step")
    assert ["eval/loss" in step.metrics for step in steps] == [True, True, False, True]
    assert steps[-1].metrics["epoch"] == 2.0


def test_measures_held_out_pairs_as_those_of_a_step(lab, written, monkeypatch):
    # In parts of 2, 2, 2 and 1; the next step trains on the same pairs with the same policy.
    monkeypatch.setattr("backend.jobs.preference_job._MEASURED_AT_ONCE", 2)
    pairs = [*PAIRS, *({**pair, "prompt": f"the {pair['prompt']}"} for pair in PAIRS[:3])]
    settings = {"steps": 2, "batch_size": 7, "learning_rate": 2e-3}
    job_id = written.run("preference", pairs, eval_data=written.upload("preference", pairs), **settings)
    first, second = lab.events(job_id, "step")
    measured = {k.removeprefix("eval/"): v for k, v in first.metrics.items() if k.startswith("eval/")}
    assert measured.pop("loss") == pytest.approx(second.loss, rel=1e-4)
    assert measured == pytest.approx({name: second.metrics[name] for name in measured}, rel=1e-4)
    assert first.loss > second.loss + 1e-3


def test_takes_the_policy_it_began_with_as_its_reference(lab, written):
    rows = [{"prompt": pair["prompt"], "completion": pair["rejected"]} for pair in PAIRS]
    taught = written.run("sft", rows, steps=40, batch_size=4, learning_rate=1e-2)
    job_id = written.run(
        "preference", PAIRS, steps=2, batch_size=4, learning_rate=1e-3, initial_policy=f"{taught}@40"
    )
    first = lab.events(job_id, "step")[0]
    assert first.metrics["reward_margin"] == pytest.approx(0.0, abs=1e-5)
    assert first.metrics["logprob_rejected"] > -3 > first.metrics["logprob_chosen"]


@pytest.mark.parametrize(
    "beginning", [pytest.param("the model", marks=pytest.mark.full("as another job")), "another job"]
)
def test_restores_lost_reference_from_the_beginning(lab, written, learner, beginning):
    learner.hold_at = math.inf
    settings = {"steps": 6, "batch_size": 2, "learning_rate": 1e-2, "checkpoint_every": 2, "held_out": 0.25}
    if beginning == "another job":
        rows = [{"prompt": pair["prompt"], "completion": pair["rejected"]} for pair in PAIRS]
        settings["initial_policy"] = f"{written.run('sft', rows, steps=3, learning_rate=1e-2)}@3"
    smooth = written.run("preference", PAIRS, **settings)
    learner.hold_at = learner.batches + 4
    broken = written.start("preference", PAIRS, **settings)
    assert learner.reached.wait(60.0)
    learner.dies = True
    learner.go_on.set()
    lab.close_pool()
    learner.dies = False
    kept = list(lab.config.jobs_dir.glob(f"**/{broken}/**/reference-*.npz"))
    assert len(kept) == 2  # of what is trained on, and of what is held out
    for file in kept:
        file.unlink()
    lab.start_pool()
    lab.pool.start_job(broken)
    lab.until(broken, lambda: lab.state(broken).final)
    assert lab.service.job(broken).attempt == 2
    told = [
        {step.step: (step.loss, step.metrics["reward_margin"]) for step in lab.events(job_id, "step")}
        for job_id in (smooth, broken)
    ]
    assert told[0] == told[1]
    assert lab.weights(broken, 6) == lab.weights(smooth, 6)


def test_ends_job_of_a_diverged_policy_by_its_loss(lab, written, monkeypatch):
    def logprobs(self, policy_id, sequences):
        return [np.full(sum(sequence.loss_mask), np.nan) for sequence in sequences]

    monkeypatch.setattr(Learner, "logprobs", logprobs)
    monkeypatch.setattr(WrittenDataJob, "_publish_present", lambda self, records: {})
    job_id = written.start("preference", PAIRS, loss=SimPO())
    lab.until_state(job_id, JobState.FAILED)
    assert lab.events(job_id, "state")[-1].error.type == "NonFiniteLossError"
