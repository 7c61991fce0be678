"""Every loss through the learner: micro-batches, prefix sharing and head slices against the definition."""

import dataclasses

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from backend.learner import train_pass
from backend.learner.learner import Learner
from backend.learner.pass_results import BatchPart, metrics_over_parts
from backend.learner.sequences import BatchTotals
from backend.learner.token_loss import algorithm_loss, policy_loss
from tinkergym.algorithms import GRPO
from tinkergym.schema.jobs.parts import FullParameters, LoRA

CONSTANT = 10
ALGORITHMS = {
    name: GRPO.model_construct(**settings)
    for name, settings in {
        "reinforce": {"loss": "reinforce", "aggregation": "sequence"},
        "importance_sampling": {"loss": "importance_sampling"},
        "cispo": {"loss": "cispo"},
        "gspo": {"loss": "gspo", "aggregation": "sequence", "clip_low": 0.05, "clip_high": 0.05},
        "dro": {"loss": "dro", "dro_beta": 0.3},
        "dual_clip": {"dual_clip": 1.3},
        "kl_k2": {"kl_coefficient": 0.3, "kl_estimator": "k2"},
        "kl_k3": {"kl_coefficient": 0.3, "aggregation": "constant"},
        "entropy": {"entropy_coefficient": 0.2, "aggregation": "sequence"},
        "truncated": {"importance_correction": "truncated", "importance_cap": 1.5},
        "masked": {"importance_correction": "masked", "importance_cap": 1.5},
        "truncated_sequence": {
            "importance_correction": "truncated",
            "importance_cap": 1.5,
            "importance_level": "sequence",
        },
        "gspo_masked": {
            "loss": "gspo",
            "importance_correction": "masked",
            "importance_cap": 8.0,
            "importance_level": "sequence",
        },
    }.items()
}
CONFIGS = {name: algorithm_loss(algorithm, CONSTANT) for name, algorithm in ALGORITHMS.items()}


EVERY = pytest.mark.parametrize("name", CONFIGS)


@pytest.fixture(scope="module")
def trained(model_dir, make_batch):
    """A trained policy, and a batch with reference logprobs and sampling logprobs near its own."""
    return prepared(Learner(model_dir), make_batch(seed=0))


@pytest.fixture(scope="module")
def in_small_parts(model_dir, make_batch):
    return prepared(Learner(model_dir, micro_batch_tokens=7), make_batch(seed=0))


@pytest.fixture
def ready(trained):
    """Tests ask for gradients, and leave the policy as it is."""
    learner, _ = trained
    learner.forget_gradient("p")
    return trained


def prepared(learner, batch):
    learner.create_policy("p", FullParameters(), seed=3)
    learner.forward_backward("p", batch, policy_loss())
    learner.optim_step("p", learning_rate=5e-3)
    reference, own = learner.logprobs(None, batch), learner.logprobs("p", batch)
    rng, sequences = np.random.default_rng(0), []
    for sequence, ref, now in zip(batch, reference, own, strict=True):
        sampling = iter((now + rng.normal(0, 0.3, len(now))).tolist())
        sequences.append(
            dataclasses.replace(
                sequence,
                sampling_logprobs=[next(sampling) if m else None for m in sequence.loss_mask],
                reference_logprobs=ref,
                weight=0.5 + len(sequences) % 3,
            )
        )
    return learner, sequences


def gradient(learner, batch, config, **kwargs):
    result = learner.forward_backward("p", batch, config, **kwargs)
    found = {name: g.clone() for name, g in learner.gradient("p").items()}
    learner._policies["p"].forget_gradient()
    return found, result


def assert_close(left, right, tolerance=2e-6):
    scale = max(float(g.abs().max()) for g in right.values())
    assert scale > 0
    for name, expected in right.items():
        torch.testing.assert_close(left[name], expected, atol=tolerance * max(scale, 1.0), rtol=2e-4)


def plain(model, batch, config):
    """The losses written out once more, sequence by sequence, without any of the learner's functions."""
    total, tokens = 0.0, sum(sum(s.loss_mask) for s in batch)
    for s in batch:
        logits = model(input_ids=torch.tensor([s.token_ids])).logits[0].log_softmax(-1)
        learner = torch.stack([logits[i - 1, s.token_ids[i]] for i, m in enumerate(s.loss_mask) if m])
        sampling = torch.tensor([p for p in s.sampling_logprobs if p is not None])
        begun = learner.detach() if s.proximal_logprobs is None else torch.as_tensor(s.proximal_logprobs)
        anchor = begun if config.corrects else sampling
        ratio, a = (learner - anchor).exp(), s.advantage
        if config.loss == "gspo":
            ratio = (learner - anchor).mean().exp().expand(len(learner))
        inside = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
        losses = {
            "reinforce": -a * learner,
            "importance_sampling": -a * ratio,
            "cispo": -a * inside.detach() * learner,
            "dro": -(a * (learner - anchor) - config.dro_beta / 2 * (learner - anchor) ** 2),
        }.get(config.loss, -torch.minimum(a * ratio, a * inside))
        if config.dual_clip and a < 0:
            losses = torch.minimum(losses, torch.tensor(-a * config.dual_clip))
        if config.corrects:
            gap = begun - sampling
            weight = (gap.sum().expand(len(gap)) if config.importance_level == "sequence" else gap).exp()
            cap = config.importance_cap
            cut = weight.clamp(max=cap)
            if config.importance_correction == "masked":
                cut = weight * ((weight <= cap) & (weight >= 1 / cap))
            losses = losses * cut
        if config.kl_coefficient:
            gap = learner - torch.as_tensor(s.reference_logprobs)
            kl = gap**2 / 2 if config.kl_estimator == "k2" else (-gap).exp() - 1 + gap
            losses = losses + config.kl_coefficient * kl
        if config.entropy_coefficient:
            undecided = -(logits.exp() * logits).sum(-1)
            places = [i - 1 for i, m in enumerate(s.loss_mask) if m]
            losses = losses - config.entropy_coefficient * undecided[places]
        sequence = {
            "token": losses.sum() / tokens,
            "sequence": losses.mean() / len(batch),
            "constant": losses.sum() / CONSTANT / len(batch),
        }
        total = total + s.weight * sequence[config.aggregation]
    return total


@EVERY
def test_matches_loss_and_gradient_of_the_formula_by_plain_autograd(ready, name, tmp_path):
    learner, batch = ready
    learner.save("p", tmp_path / "step-1", step=1, policy_version=1)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "step-1", attn_implementation="eager").eval()
    loss = plain(model, batch, ALGORITHMS[name])
    loss.backward()
    found, result = gradient(learner, batch, CONFIGS[name])
    assert result.loss == pytest.approx(float(loss.detach()), abs=1e-5)
    assert_close(found, {n: p.grad for n, p in model.named_parameters()}, tolerance=1e-5)


@pytest.mark.parametrize("name", [name for name, algorithm in ALGORITHMS.items() if algorithm.corrects])
def test_weighs_later_updates_by_policy_that_the_step_began_with(ready, name, tmp_path):
    learner, batch = ready
    rng, own = np.random.default_rng(1), learner.logprobs("p", batch)
    batch = [
        dataclasses.replace(s, proximal_logprobs=(now + rng.normal(0, 0.2, len(now))).astype(np.float32))
        for s, now in zip(batch, own, strict=True)
    ]
    learner.save("p", tmp_path / "step-1", step=1, policy_version=1)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "step-1", attn_implementation="eager").eval()
    loss = plain(model, batch, ALGORITHMS[name])
    loss.backward()
    found, result = gradient(learner, batch, CONFIGS[name])
    assert result.loss == pytest.approx(float(loss.detach()), abs=1e-5)
    assert_close(found, {n: p.grad for n, p in model.named_parameters()}, tolerance=1e-5)


@EVERY
def test_keeps_gradient_across_micro_batches_head_slices_and_halves(ready, in_small_parts, name, monkeypatch):
    learner, sequences = ready
    whole, result = gradient(learner, sequences, CONFIGS[name])
    small, sequences = in_small_parts
    monkeypatch.setattr(train_pass, "_HEAD_ROWS", 2)
    monkeypatch.setattr(train_pass, "_HEAD_ELEMENTS", 1)
    cut, of_cut = gradient(small, sequences, CONFIGS[name])
    assert_close(cut, whole)
    assert of_cut.metrics["clip_fraction"] == pytest.approx(result.metrics["clip_fraction"])
    totals = BatchTotals.of(sequences)
    small.forward_backward("p", sequences[:4], CONFIGS[name], totals=totals)
    assert_close(gradient(small, sequences[4:], CONFIGS[name], totals=totals)[0], whole)


@EVERY
def test_uses_sampling_logprobs_where_the_loss_does(ready, name):
    learner, batch = ready
    corrupted = [
        dataclasses.replace(s, sampling_logprobs=[p and p - 0.05 for p in s.sampling_logprobs]) for s in batch
    ]
    right, wrong = (learner.forward_backward("p", b, CONFIGS[name]).loss for b in (batch, corrupted))
    assert (right == wrong) is (name == "reinforce")


@pytest.mark.parametrize("name", ["reinforce", "importance_sampling", "cispo", "gspo", "truncated"])
def test_gives_exactly_zero_gradient_for_advantage_zero(ready, name):
    learner, batch = ready
    silent = [dataclasses.replace(s, advantage=0.0) for s in batch]
    found, _ = gradient(learner, silent, CONFIGS[name])
    assert not any(g.any() for g in found.values())


def test_feels_only_the_kl_penalty_in_silent_groups(ready):
    learner, batch = ready
    silent = [dataclasses.replace(s, advantage=0.0) for s in batch]
    found, result = gradient(learner, silent, CONFIGS["kl_k3"])
    assert any(g.any() for g in found.values())
    assert result.metrics["kl"] > 0


def test_starts_with_zero_kl_to_itself(learner, batch):
    learner.create_policy("p", LoRA(rank=2), seed=0)
    reference = learner.logprobs(None, batch)
    first = [dataclasses.replace(s, reference_logprobs=r) for s, r in zip(batch, reference, strict=True)]
    result = learner.forward_backward("p", first, CONFIGS["kl_k3"])
    assert result.metrics["kl"] == pytest.approx(0.0, abs=1e-9)


def test_takes_per_token_advantages_token_by_token(ready):
    learner, batch = ready
    mixed = [
        dataclasses.replace(s, advantage=[float(i % 3 - 1) for i in range(len(s.token_ids))]) for s in batch
    ]
    found, _ = gradient(learner, mixed, CONFIGS["reinforce"])
    parts = []
    for sign in (-1.0, 1.0):
        part = [dataclasses.replace(s, advantage=[sign * (a == sign) for a in s.advantage]) for s in mixed]
        parts.append(gradient(learner, part, CONFIGS["reinforce"])[0])
    assert_close(found, {name: parts[0][name] + parts[1][name] for name in found})


def test_says_how_far_learner_and_sampler_are_apart(ready):
    learner, batch = ready
    metrics = learner.forward_backward("p", batch, CONFIGS["masked"]).metrics
    sampling = np.concatenate([[p for p in s.sampling_logprobs if p is not None] for s in batch])
    ratios = np.exp(np.concatenate(learner.logprobs("p", batch)) - sampling)
    outside = (ratios > 1.5) | (ratios < 1 / 1.5)
    assert metrics["importance_ratio_max"] == pytest.approx(ratios.max(), rel=1e-4)
    assert metrics["importance_changed_fraction"] == pytest.approx(outside.mean())
    assert metrics["importance_weight_max"] == pytest.approx(ratios[~outside].max(), rel=1e-4)
    assert metrics["ratio_max"] == pytest.approx(ratios.max(), rel=1e-4)


def test_sums_importance_weights_over_sequences_that_have_a_loss(ready):
    learner, batch = ready
    # The engine agrees with the learner, and every other sequence teaches nothing.
    own = learner.logprobs("p", batch)
    same = []
    for number, (sequence, logprobs) in enumerate(zip(batch, own, strict=True)):
        known = iter(logprobs.tolist())
        sampling = [next(known) if sampled else None for sampled in sequence.loss_mask]
        same.append(dataclasses.replace(sequence, sampling_logprobs=sampling, advantage=float(number % 2)))
    found = learner.forward_backward("p", same, CONFIGS["truncated"])
    assert found.metrics["importance_weight_mean"] == pytest.approx(1.0, rel=1e-5)
    assert found.judged_tokens == sum(len(logprobs) for logprobs in own[1::2])


def test_counts_batch_parts_for_importance_weights_by_their_loss_tokens():
    some = {"kl": 1.0, "importance_weight_mean": 1.0, "importance_changed_fraction": 0.5}
    found = metrics_over_parts(
        [
            BatchPart(tokens=10, judged_tokens=2, metrics=some),
            BatchPart(tokens=10, judged_tokens=8, metrics={**some, "importance_weight_mean": 2.0}),
            BatchPart(tokens=20, judged_tokens=0, metrics={}),
        ]
    )
    assert found == pytest.approx(
        {"kl": 0.5, "importance_weight_mean": 1.8, "importance_changed_fraction": 0.5}
    )
