import dataclasses
import math
import threading

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from backend.compute.weights import weights_sha256
from backend.learner.learner import Learner
from backend.learner.sequences import BatchTotals, TrainSequence
from backend.learner.token_loss import policy_loss
from tests.backend.learner.tiny import _tiny, assert_close, trained
from tinkergym.errors import (
    ConflictError,
    NonFiniteLossError,
    UnknownModelError,
)
from tinkergym.schema.jobs.parts import FullParameters, LoRA

ADAPTERS = [LoRA(rank=4, alpha=12.0), FullParameters()]


KINDS = pytest.mark.parametrize("adapter", ADAPTERS, ids=["lora", "full"])


def plain_model(learner, path, policy_id="p"):
    """The policy as anybody would load it, without anything of ours."""
    manifest = learner.save(policy_id, path, step=1, policy_version=1)
    if manifest.adapter.kind == "full":
        return AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()
    base = AutoModelForCausalLM.from_pretrained(learner._base.path, attn_implementation="eager")
    return PeftModel.from_pretrained(base, path, is_trainable=True).eval()


def plain_logprobs(model, sequence):
    """One sequence alone, one position after the other, as the definition says."""
    logits = model(input_ids=torch.tensor([sequence.token_ids])).logits[0]
    return torch.stack(
        [
            torch.log_softmax(logits[place - 1] / sequence.temperature, dim=-1)[sequence.token_ids[place]]
            for place, sampled in enumerate(sequence.loss_mask)
            if sampled
        ]
    )


def plain_loss(model, batch):
    """GRPO's token-mean loss with clipping to [0.8, 1.2], written out."""
    total, tokens = 0.0, 0
    for sequence in batch:
        sampling = torch.tensor([p for p in sequence.sampling_logprobs if p is not None])
        ratio = torch.exp(plain_logprobs(model, sequence) - sampling)
        advantage = sequence.advantage
        total = total - torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).sum()
        tokens += len(sampling)
    return total / tokens


def gradients(learner, policy_id, batch, loss=None, **kwargs):
    """The gradient that waits, read off what one step of plain weight difference would be."""
    learner.forward_backward(policy_id, batch, loss or policy_loss(), **kwargs)
    return pending(learner, policy_id)


def pending(learner, policy_id):
    entry = learner._policies[policy_id]
    found = {name: p.grad.clone() for name, p in entry.policy.parameters.items()}
    entry.optimizer.clear()
    return found


@KINDS
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_equals_plain_transformers_on_each_sequence_alone(
    learner, make_batch, adapter, temperature, tmp_path
):
    batch = make_batch(seed=1, temperature=temperature)
    trained(learner, adapter, batch)
    model = plain_model(learner, tmp_path / "step-1")
    result = learner.forward_backward("p", batch, policy_loss())
    with torch.no_grad():
        for sequence, found in zip(batch, result.learner_logprobs, strict=True):
            np.testing.assert_allclose(found, plain_logprobs(model, sequence), atol=5e-5)


@KINDS
def test_matches_loss_and_gradient_of_the_formula_by_plain_autograd(learner, batch, adapter, tmp_path):
    trained(learner, adapter, batch)
    model = plain_model(learner, tmp_path / "step-1")
    loss = plain_loss(model, batch)
    loss.backward()
    expected = {
        name.replace(".default", ""): p.grad for name, p in model.named_parameters() if p.grad is not None
    }
    result = learner.forward_backward("p", batch, policy_loss())
    assert result.loss == pytest.approx(float(loss.detach()), abs=1e-5)
    assert result.metrics["clip_fraction"] > 0
    assert_close(pending(learner, "p"), expected, tolerance=1e-5)


def test_computes_a_sequence_alone_as_in_a_batch(learner, make_batch):
    batch = make_batch(seed=2, groups=4, size=4)
    trained(learner, ADAPTERS[0], batch)
    together = learner.logprobs("p", batch)
    for sequence, found in zip(batch, together, strict=True):
        np.testing.assert_allclose(learner.logprobs("p", [sequence])[0], found, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("adapter", "aggregation"), [(ADAPTERS[0], "sequence"), (ADAPTERS[1], "token"), (ADAPTERS[1], "constant")]
)
def test_keeps_gradient_whatever_the_micro_batches(model_dir, batch, adapter, aggregation):
    loss = policy_loss(aggregation=aggregation, constant_tokens=10)
    found = []
    for tokens in (7, 31, 4096):
        learner = Learner(model_dir, micro_batch_tokens=tokens)
        trained(learner, adapter, batch, steps=0)
        found.append(gradients(learner, "p", batch, loss))
    assert_close(found[0], found[2])
    assert_close(found[1], found[2])


def test_adds_two_calls_with_halves_up_to_the_whole(learner, batch):
    trained(learner, ADAPTERS[0], batch)
    whole = gradients(learner, "p", batch)
    totals = BatchTotals.of(batch)
    learner.forward_backward("p", batch[:4], policy_loss(), totals=totals)
    assert_close(gradients(learner, "p", batch[4:], totals=totals), whole)


@pytest.mark.parametrize(
    ("family", "adapter"),
    [
        *((family, FullParameters()) for family in ("gemma2_softcap", "granite_scaled", "mistral_window")),
        *((family, adapter) for family in ("gpt2", "llama_tied", "phi_bias") for adapter in ADAPTERS),
    ],
)
def test_computes_other_model_families_as_transformers_does(family, adapter, make_batch, tmp_path):
    _tiny(family).save_pretrained(tmp_path / "model")
    learner = Learner(tmp_path / "model")
    batch = make_batch(seed=1)
    trained(learner, adapter, batch)
    model = plain_model(learner, tmp_path / "step-1")
    for sequence, found in zip(batch, learner.logprobs("p", batch), strict=True):
        with torch.no_grad():
            np.testing.assert_allclose(found, plain_logprobs(model, sequence), atol=2e-5)


@KINDS
def test_makes_rewarded_tokens_likely(learner, adapter):
    canary = TrainSequence(
        token_ids=[3, 1, 4, 42, 15],
        loss_mask=[False, False, False, True, True],
        sampling_logprobs=[None] * 3 + [0.0] * 2,
    )
    learner.create_policy("p", adapter, seed=0)
    for _ in range(80):
        (logprobs,) = learner.logprobs("p", [canary])
        on_policy = dataclasses.replace(
            canary, sampling_logprobs=[None] * 3 + logprobs.tolist(), advantage=1.0
        )
        learner.forward_backward("p", [on_policy], policy_loss())
        learner.optim_step("p", learning_rate=3e-2)
    assert np.exp(learner.logprobs("p", [canary])[0]).min() > 0.8
    np.testing.assert_allclose(  # the base model is as it was
        learner.logprobs(None, [canary])[0],
        Learner(learner._base.path).logprobs(None, [canary])[0],
        atol=1e-6,
    )


def test_gives_zero_gradient_and_logprobs_for_advantage_zero(learner, batch):
    trained(learner, ADAPTERS[0], batch)
    expected = learner.logprobs("p", batch)
    silent = [dataclasses.replace(sequence, advantage=0.0) for sequence in batch]
    result = learner.forward_backward("p", silent, policy_loss())
    assert result.loss == 0.0
    for found, wanted in zip(result.learner_logprobs, expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert learner.optim_step("p", learning_rate=1e-2).grad_norm == 0.0


def test_counts_sequences_with_advantage_zero_in_the_mean(learner, batch):
    trained(learner, ADAPTERS[0], batch)
    mixed = [dataclasses.replace(s, advantage=0.0) if i % 2 else s for i, s in enumerate(batch)]
    totals = BatchTotals.of(batch)
    expected = gradients(learner, "p", mixed[::2], totals=totals)
    assert_close(gradients(learner, "p", mixed), expected)


def test_learns_only_sampled_tokens(learner, batch):
    trained(learner, ADAPTERS[0], batch)
    before = gradients(learner, "p", batch)
    spoiled = [  # numbers where nothing was sampled must not be looked at
        dataclasses.replace(
            s,
            sampling_logprobs=[-9.0 if p is None else p for p in s.sampling_logprobs],
            advantage=[s.advantage if m else math.nan for m in s.loss_mask],
        )
        for s in batch
    ]
    after = gradients(learner, "p", spoiled)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_uses_logprobs_of_the_policy_that_sampled(learner, batch):
    trained(learner, ADAPTERS[0], batch)
    corrupted = [
        dataclasses.replace(s, sampling_logprobs=[p and p - 0.05 for p in s.sampling_logprobs]) for s in batch
    ]
    loss = learner.forward_backward("p", batch, policy_loss(clip_high=100.0)).loss
    assert learner.forward_backward("p", corrupted, policy_loss(clip_high=100.0)).loss != pytest.approx(loss)


def test_compares_learner_with_the_sampling_policy_in_metrics(learner, batch):
    learner.create_policy("p", ADAPTERS[0], seed=1)
    result = learner.forward_backward("p", batch, policy_loss())
    sampling = [[p for p in s.sampling_logprobs if p is not None] for s in batch]
    gap = np.abs(np.concatenate(result.learner_logprobs) - np.concatenate(sampling))
    assert result.metrics["logprob_gap_max"] == pytest.approx(gap.max(), rel=1e-5)
    assert result.metrics["logprob_gap_mean"] == pytest.approx(gap.mean(), rel=1e-5)
    assert 0 < result.metrics["shared_fraction"] < 1


@KINDS
def test_repeats_bits_by_the_same_seed_and_data(model_dir, batch, adapter):
    hashes = []
    for _ in range(2):
        learner = Learner(model_dir, micro_batch_tokens=40)
        trained(learner, adapter, batch, steps=3)
        hashes.append(weights_sha256(learner.weights("p")))
    assert hashes[0] == hashes[1]


def test_isolates_threads_with_a_policy_each(model_dir, make_batch):
    batches = [make_batch(seed=seed) for seed in range(3)]
    alone = []
    for data in batches:
        learner = Learner(model_dir)
        trained(learner, ADAPTERS[0], data, steps=3)
        alone.append(weights_sha256(learner.weights("p")))
    learner = Learner(model_dir, device_lock=threading.Lock(), micro_batch_tokens=4096)
    threads = [
        threading.Thread(
            target=trained, args=(learner, ADAPTERS[0], data), kwargs={"steps": 3, "policy_id": f"p{i}"}
        )
        for i, data in enumerate(batches)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [weights_sha256(learner.weights(f"p{i}")) for i in range(3)] == alone
    assert learner.busy_seconds > 0


@KINDS
def test_steps_by_adamw_on_the_clipped_gradient(learner, batch, adapter):
    trained(learner, adapter, batch, steps=0)
    before = learner.weights("p").tensors
    gradient = gradients(learner, "p", batch)
    norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in gradient.values()))
    result = _step(learner, batch, learning_rate=0.01, max_grad_norm=norm / 2, weight_decay=0.1)
    assert result.grad_norm == pytest.approx(norm, rel=1e-5)
    for name, weight in learner.weights("p").tensors.items():
        # AdamW's first step: the decayed weight minus the gradient over its own size.
        clipped = gradient[name] / 2
        expected = before[name] * (1 - 0.01 * 0.1) - 0.01 * clipped / (clipped.abs() + 1e-8)
        torch.testing.assert_close(weight, expected, atol=2e-5, rtol=1e-4)


def _step(learner, batch, **kwargs):
    learner.forward_backward("p", batch, policy_loss())
    return learner.optim_step("p", **kwargs)


@KINDS
def test_rejects_gradient_that_is_not_finite_and_changes_nothing(learner, batch, adapter):
    trained(learner, adapter, batch)
    before = weights_sha256(learner.weights("p"))
    exploding = [
        dataclasses.replace(s, sampling_logprobs=[p and -1e30 for p in s.sampling_logprobs], advantage=-1.0)
        for s in batch
    ]
    learner.forward_backward("p", batch, policy_loss())  # waits, and must not be applied without the rest
    with pytest.raises(NonFiniteLossError):
        learner.forward_backward("p", exploding, policy_loss())
    with pytest.raises(ConflictError, check=lambda error: error.code == "no_gradient"):
        learner.optim_step("p", learning_rate=1e-2)
    learner.forward_backward("p", batch, policy_loss())
    next(iter(learner.gradient("p").values())).view(-1)[0] = math.nan
    with pytest.raises(NonFiniteLossError):
        learner.optim_step("p", learning_rate=1e-2)
    assert weights_sha256(learner.weights("p")) == before
    _step(learner, batch, learning_rate=1e-2)  # and training can go on
    assert all(t.isfinite().all() for t in learner.weights("p").tensors.values())


def test_rejects_step_without_a_gradient(learner, batch):
    trained(learner, ADAPTERS[0], batch)
    with pytest.raises(ConflictError, check=lambda error: error.code == "no_gradient"):
        learner.optim_step("p", learning_rate=1e-2)


def test_rejects_directory_without_a_model(tmp_path):
    with pytest.raises(UnknownModelError):
        Learner(tmp_path)


@pytest.mark.parametrize("adapter", [LoRA(rank=4), FullParameters()], ids=lambda adapter: adapter.kind)
def test_trains_in_float32_on_a_base_in_bfloat16(model_dir, batch, learner, adapter):
    short = Learner(model_dir, dtype=torch.bfloat16)
    flat = []
    for each in (short, learner):
        trained(each, adapter, batch, steps=0)
        flat.append(torch.cat([g.flatten() for g in gradients(each, "p", batch).values()]))
    assert torch.cosine_similarity(*flat, dim=0) > 0.99
    assert {gradient.dtype for gradient in flat} == {torch.float32}
    assert {t.dtype for t in short.weights("p").tensors.values()} == {torch.float32}


def test_adds_up_updates_too_small_for_bfloat16_through_checkpoint(model_dir, batch, tmp_path):
    short = Learner(model_dir, dtype=torch.bfloat16)
    short.create_policy("p", FullParameters(), seed=0)
    begin = short.weights("p").tensors

    def step(policy_id):
        short.forward_backward(policy_id, batch, policy_loss(clip_low=1.0, clip_high=100.0))
        short.optim_step(policy_id, learning_rate=1e-6)

    for _ in range(3):
        step("p")
    moved = short.weights("p").tensors
    name = max(begin, key=lambda name: float(begin[name].abs().max()))
    largest = begin[name].abs() == begin[name].abs().max()
    assert (moved[name][largest] != begin[name][largest]).all()
    assert torch.equal(moved[name][largest].bfloat16(), begin[name][largest].bfloat16())

    short.save("p", tmp_path / "step-3", step=3, policy_version=3)
    short.load("again", tmp_path / "step-3", FullParameters())
    for policy_id in ("p", "again"):
        step(policy_id)
    assert weights_sha256(short.weights("again")) == weights_sha256(short.weights("p"))


def test_lowers_certainty_of_policy_by_entropy_bonus_alone(learner, batch):
    """With every advantage 0 nothing but the bonus moves the policy."""
    indifferent = [dataclasses.replace(sequence, advantage=0.0) for sequence in batch]
    learner.create_policy("p", FullParameters(), seed=0)
    before = learner.forward_backward("p", indifferent, policy_loss(entropy_coefficient=1.0)).loss
    learner.optim_step("p", learning_rate=1e-3)
    after = learner.forward_backward("p", indifferent, policy_loss(entropy_coefficient=1.0)).loss
    assert after < before < 0
