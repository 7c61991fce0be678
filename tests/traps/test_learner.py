"""Traps of the learner: a wrong number that trains something all the same."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from backend.compute.weights import weights_sha256
from backend.learner.forward_backward import PolicyBatch
from backend.learner.learner import Learner
from backend.learner.merging import merge_adapter
from backend.learner.parallel.rank import shards
from backend.learner.sequences import BatchTotals
from backend.learner.token_loss import likelihood_loss, policy_loss
from tinkergym.errors import ConflictError, NonFiniteLossError
from tinkergym.schema.jobs.parts import FullParameters, LoRA


def close(found, expected, tolerance=1e-5):
    assert found.keys() == expected.keys()
    scale = max(1.0, max(float(tensor.abs().max()) for tensor in expected.values()))
    assert any(float(tensor.abs().max()) > 0 for tensor in expected.values())
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=tolerance * scale, rtol=0)


def total(parts):
    return {name: sum(part[name] for part in parts) for name in parts[0]}


def as_the_definition_says(model, sequence):
    """The logprobs of a sequence's sampled tokens: place t is predicted from place t - 1."""
    logits = model(input_ids=torch.tensor([sequence.token_ids])).logits[0].float()
    table = torch.log_softmax(logits, dim=-1)
    return torch.stack([table[t - 1, sequence.token_ids[t]] for t, m in enumerate(sequence.loss_mask) if m])


def test_aligns_logits_targets_and_mask_on_same_tokens(learner, bench, tmp_path):
    """Fails when the logits are read one place too late, or the targets one place too early."""
    batch = bench.batch(1)
    learner.create_policy("p", bench.ADAPTER, seed=1)
    bench.train(learner, "p", batch)
    learner.save("p", tmp_path / "p", step=1, policy_version=1)
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(learner._base.path), tmp_path / "p", is_trainable=True
    ).eval()
    losses, tokens = [], 0
    for sequence, found in zip(batch, learner.logprobs("p", batch), strict=True):
        expected = as_the_definition_says(model, sequence)
        np.testing.assert_allclose(found, expected.detach(), atol=2e-5)
        sampling = torch.tensor([p for p in sequence.sampling_logprobs if p is not None])
        losses.append(-(torch.exp(expected - sampling) * sequence.advantage).sum())
        tokens += len(expected)
    (sum(losses) / tokens).backward()
    wanted = {n.replace(".default", ""): p.grad for n, p in model.named_parameters() if p.grad is not None}
    found, _ = bench.gradient(learner, "p", batch)
    close(found, wanted, tolerance=5e-5)


def test_trains_no_token_that_was_not_sampled(learner, bench):
    """Fails when the loss is taken over every token, or a number at an unsampled place is read."""
    batch = bench.batch(2)
    learner.create_policy("p", bench.ADAPTER, seed=1)
    bench.train(learner, "p", batch)
    expected, _ = bench.gradient(learner, "p", batch)
    spoiled = [
        replace(
            s,
            sampling_logprobs=[-50.0 if p is None else p for p in s.sampling_logprobs],
            advantage=[s.advantage if m else float("nan") for m in s.loss_mask],
        )
        for s in batch
    ]
    found, _ = bench.gradient(learner, "p", spoiled)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    # And what stands after the last sampled token is not looked at.
    longer = [
        replace(
            s,
            token_ids=[*s.token_ids, 3, 1],
            loss_mask=[*s.loss_mask, False, False],
            sampling_logprobs=[*s.sampling_logprobs, None, None],
        )
        for s in batch
    ]
    found, _ = bench.gradient(learner, "p", longer)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("family", "aggregation"), [("qwen3", "token"), ("gpt2", "sequence"), ("window", "token")]
)
def test_computes_sequence_alike_alone_and_packed(model_dirs, bench, family, aggregation):
    """Fails when a shared prompt's gradient is the mean of its sequences' instead of their sum.

    Or, where rows are padded (`window`), when the padding stands on the left and is attended to.
    """
    learner, batch = Learner(model_dirs[family]), bench.batch(3, sequences=8)
    learner.create_policy("p", bench.ADAPTER, seed=1)
    bench.train(learner, "p", batch)
    loss = policy_loss(aggregation=aggregation, clip_low=1.0, clip_high=1e6)
    together, whole_loss = bench.gradient(learner, "p", batch, loss)
    known = learner.logprobs("p", batch)
    totals = BatchTotals.of(batch)
    alone = [bench.gradient(learner, "p", [sequence], loss, totals=totals) for sequence in batch]
    close(total([gradient for gradient, _ in alone]), together, tolerance=1e-6)
    assert sum(loss for _, loss in alone) == pytest.approx(whole_loss, abs=1e-5)
    for sequence, found in zip(batch, known, strict=True):
        np.testing.assert_allclose(learner.logprobs("p", [sequence])[0], found, atol=2e-5)


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_turns_dropout_of_the_model_off_in_learner(model_dirs, bench, family):
    """Fails when the model is put into training mode."""
    learner, batch = Learner(model_dirs[family]), bench.batch(4)
    learner.create_policy("p", bench.ADAPTER, seed=1)
    bench.train(learner, "p", batch)
    first, again = learner.logprobs("p", batch), learner.logprobs("p", batch)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize(
    ("ranks", "aggregation"), [(2, "token"), (2, "sequence"), (2, "constant"), (9, "sequence")]
)
def test_divides_by_the_whole_batch_on_ranks(learner, bench, aggregation, ranks):
    """Fails when a rank divides by its own part of the batch; a rank may have nothing."""
    batch = bench.batch(5, sequences=7)
    learner.create_policy("p", bench.ADAPTER, seed=1)
    bench.train(learner, "p", batch)
    loss = policy_loss(aggregation=aggregation, constant_tokens=5, clip_low=1.0, clip_high=1e6)
    whole, _ = bench.gradient(learner, "p", batch, loss)
    totals = BatchTotals.of(batch)
    parts = shards(batch, ranks)
    assert sorted(i for part in parts for i in part) == list(range(7))
    assert len(parts) == ranks
    found = [
        bench.gradient(learner, "p", [batch[i] for i in part], loss, totals=totals)[0]
        for part in parts
        if part
    ]
    # Batches of other sizes round differently; a rank's own divisor would be off by a third or more.
    close(total(found), whole, tolerance=5e-5)


def test_scales_adapter_alike_in_learner_engine_and_export(learner, start_engine, bench, tmp_path):
    """Fails when the engine leaves alpha out, or the saved adapter_config.json has another alpha."""
    engine, batch = start_engine(), bench.batch(6)
    learner.create_policy("p", LoRA(rank=3, alpha=21.0), seed=1)
    bench.train(learner, "p", batch, steps=2)
    bench.publish(learner, engine, "p", 1)
    request = bench.request("r", bench.prompt(9), policy="p", version=1, max_tokens=12)
    (completion,) = engine.generate_together([request])
    sequence = bench.sequence(request, completion)
    sampled = np.asarray(completion.sampling_logprobs)
    np.testing.assert_allclose(learner.logprobs("p", [sequence])[0], sampled, atol=5e-5)
    assert np.abs(learner.logprobs(None, [sequence])[0] - sampled).max() > 1e-2
    learner.save("p", tmp_path / "p", step=1, policy_version=1)
    base = AutoModelForCausalLM.from_pretrained(learner._base.path)
    merge_adapter(tmp_path / "p", tmp_path / "merged", model="m", base=learner._base.path)
    for model in (
        PeftModel.from_pretrained(base, tmp_path / "p"),
        AutoModelForCausalLM.from_pretrained(tmp_path / "merged"),
    ):
        with torch.no_grad():
            found = as_the_definition_says(model.eval(), sequence)
        np.testing.assert_allclose(found, sampled, atol=5e-5)


def test_applies_step_once_however_often_it_is_asked_for(learner, bench):
    """Fails when an optimizer step leaves its gradient waiting, or adding to the next one's."""
    learner.create_policy("p", bench.ADAPTER, seed=1)
    learner.forward_backward("p", bench.batch(7), bench.UNCLIPPED)
    learner.optim_step("p", learning_rate=1e-2)
    once = weights_sha256(learner.weights("p"))
    with pytest.raises(ConflictError, check=lambda error: error.code == "no_gradient"):
        learner.optim_step("p", learning_rate=1e-2)
    assert weights_sha256(learner.weights("p")) == once
    # Nor is it part of the next step's.
    learner.forward_backward("p", bench.batch(8), bench.UNCLIPPED)
    found = {name: tensor.clone() for name, tensor in learner.gradient("p").items()}
    expected, _ = bench.gradient(learner, "p", bench.batch(8))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


TENANTS = {
    "small": LoRA(rank=2),
    "wide": LoRA(rank=9, alpha=4.0),
    "written": LoRA(rank=4),
    "whole": FullParameters(),
}


def _work(bench):
    """RL with different losses, and texts that somebody wrote."""
    batches = {name: bench.batch(seed, sequences=4 + seed) for seed, name in enumerate(TENANTS)}
    batches["written"] = [replace(s, advantage=1.0) for s in batches["written"]]
    losses = {name: policy_loss() for name in TENANTS}
    losses["written"] = likelihood_loss()
    losses["wide"] = policy_loss(aggregation="sequence", entropy_coefficient=0.01)
    return {name: PolicyBatch(sequences=batches[name], loss=losses[name]) for name in TENANTS}


def test_gives_tenants_in_one_call_bits_of_training_alone(model_dir, bench):
    """Fails when the adapter that was made first computes for all policies.

    Or when the base model computes with the adapter that was used last.
    """
    work = _work(bench)
    alone = {}
    for name, adapter in TENANTS.items():
        learner = Learner(model_dir)
        learner.create_policy(name, adapter, seed=2)
        for _ in range(3):
            learner.forward_backward(name, work[name].sequences, work[name].loss)
            learner.optim_step(name, learning_rate=1e-2)
        alone[name] = weights_sha256(learner.weights(name))

    shared = Learner(model_dir)
    for name, adapter in TENANTS.items():
        shared.create_policy(name, adapter, seed=2)
    for step in range(3):
        order = list(TENANTS)[step:] + list(TENANTS)[:step]
        shared.forward_backward_many({name: work[name] for name in order})
        shared.logprobs(None, work["small"].sequences)
        shared.create_policy(f"guest-{step}", LoRA(rank=3), seed=9)
        for name in reversed(order):
            shared.optim_step(name, learning_rate=1e-2)
        shared.drop(f"guest-{step}")
    assert {name: weights_sha256(shared.weights(name)) for name in TENANTS} == alone


def test_leaves_no_gradient_after_one_tenants_bad_batch(model_dir, bench):
    """Fails when a call that is refused in its middle keeps the gradients of the policies before it."""
    work, hashes = _work(bench), []
    (first, *rest) = work["written"].sequences
    exploding = replace(
        first, sampling_logprobs=[-1e30 if m else None for m in first.loss_mask], advantage=-1.0
    )
    bad = PolicyBatch(sequences=[exploding, *rest], loss=policy_loss())
    for refused in (False, True):
        learner = Learner(model_dir)
        for name in ("small", "written"):
            learner.create_policy(name, TENANTS[name], seed=2)
        if refused:
            with pytest.raises(NonFiniteLossError):
                learner.forward_backward_many({"small": work["small"], "written": bad})
            with pytest.raises(ConflictError, check=lambda error: error.code == "no_gradient"):
                learner.optim_step("small", learning_rate=1e-2)
        learner.forward_backward("small", work["small"].sequences, work["small"].loss)
        learner.optim_step("small", learning_rate=1e-2)
        hashes.append(weights_sha256(learner.weights("small")))
    assert hashes[0] == hashes[1]
