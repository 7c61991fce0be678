"""A policy's value head in the learner: against plain transformers, beside other policies, in checkpoints."""

import dataclasses

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
)

from backend.compute.weights import weights_sha256
from backend.learner.learner import Learner
from backend.learner.sequences import BatchTotals
from backend.learner.token_loss import algorithm_loss, policy_loss
from tinkergym.algorithms import PPO
from tinkergym.errors import (
    CheckpointCorruptError,
    ConflictError,
    InvalidRequestError,
    NonFiniteLossError,
)
from tinkergym.schema.jobs.parts import FullParameters, LoRA

ADAPTERS = [LoRA(rank=4, alpha=12.0), FullParameters()]
KINDS = pytest.mark.parametrize("adapter", ADAPTERS, ids=["lora", "full"])
LEARNER = PPO(value_coefficient=0.3, value_clip=0.5, updates_per_step=2)
VALUED = algorithm_loss(LEARNER)
FILE = "value_head.safetensors"


def judged(batch, seed=0):
    """The batch with something for a value head to learn, apart from what it expected by less and more."""
    rng, found = np.random.default_rng(seed), []
    for sequence in batch:
        sampled = sum(sequence.loss_mask)
        old = rng.normal(0, 0.5, sampled)
        found.append(
            dataclasses.replace(sequence, value_targets=old + rng.normal(0, 1, sampled), old_values=old)
        )
    return found


def train(learner, batch, loss=VALUED, *, steps=1, policy="p"):
    for _ in range(steps):
        learner.forward_backward(policy, batch, loss)
        learner.optim_step(policy, learning_rate=5e-3, weight_decay=0.01, value_learning_rate=0.5)


def gradient(learner, batch, loss=VALUED, **kwargs):
    result = learner.forward_backward("p", batch, loss, **kwargs)
    found = {name: g.clone() for name, g in learner.gradient("p").items()}
    learner.forget_gradient("p")
    return found, result


def assert_close(left, right, tolerance=2e-6):
    assert left.keys() == right.keys()
    for name, expected in right.items():
        scale = max(float(expected.abs().max()), 1.0)
        torch.testing.assert_close(left[name], expected, atol=tolerance * scale, rtol=2e-4)


def reloaded(learner, directory):
    """The policy in plain transformers, and its head's weight and bias, with gradients."""
    learner.save("p", directory, step=1, policy_version=1)
    if (directory / "adapter_config.json").exists():
        base = AutoModelForCausalLM.from_pretrained(learner._base.path)
        model = PeftModel.from_pretrained(base, directory, is_trainable=True)
    else:
        # Not the fast attention, which leaves a soft cap out.
        model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager")
    head = {name: tensor.requires_grad_() for name, tensor in load_file(directory / FILE).items()}
    return model.eval(), head


def plain_values(model, head, sequence):
    """What the head reads from the state at the place before each sampled token."""
    out = model(input_ids=torch.tensor([sequence.token_ids]), output_hidden_states=True)
    places = [t - 1 for t, sampled in enumerate(sequence.loss_mask) if sampled]
    states = out.hidden_states[-1][0, places]
    values = (states / states.shape[1]) @ head["value_head.weight"][0] + head["value_head.bias"]
    table = out.logits[0].log_softmax(-1)
    return values, torch.stack([table[t, sequence.token_ids[t + 1]] for t in places])


def test_expects_nothing_by_a_new_head(learner, batch):
    learner.create_policy("p", ADAPTERS[0], seed=1, value_head=True)
    assert all(not values.any() for values in learner.values("p", batch))


@KINDS
def test_matches_values_loss_and_gradient_of_formula_by_plain_autograd(learner, batch, adapter, tmp_path):
    batch = judged(batch)
    learner.create_policy("p", adapter, seed=1, value_head=True)
    train(learner, batch, steps=2)
    model, head = reloaded(learner, tmp_path / "step-1")
    found, result = gradient(learner, batch)
    total, missed, tokens = 0.0, 0.0, sum(sum(s.loss_mask) for s in batch)
    for sequence, values in zip(batch, learner.values("p", batch), strict=True):
        expected, learner_logprobs = plain_values(model, head, sequence)
        np.testing.assert_allclose(values, expected.detach(), atol=5e-6)
        assert values.any()
        target, old = (
            torch.tensor(x, dtype=torch.float32) for x in (sequence.value_targets, sequence.old_values)
        )
        bounded = old + (expected - old).clamp(-0.5, 0.5)
        worse = 0.5 * torch.maximum((expected - target) ** 2, (bounded - target) ** 2)
        sampling = torch.tensor([p for p in sequence.sampling_logprobs if p is not None])
        ratio, a = (learner_logprobs - sampling).exp(), sequence.advantage
        policy = -torch.minimum(a * ratio, a * ratio.clamp(0.8, 1.2))
        total, missed = total + (policy + 0.3 * worse).sum() / tokens, missed + worse.detach().sum() / tokens
    total.backward()
    wanted = {name: p.grad for name, p in head.items()}
    wanted |= {n.replace(".default", ""): p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert_close(found, wanted, tolerance=1e-5)
    assert result.loss == pytest.approx(total.item(), abs=1e-5)
    assert result.metrics["value_loss"] == pytest.approx(missed.item(), abs=1e-5)
    assert 0 < result.metrics["value_clip_fraction"] < 1


@pytest.mark.parametrize(
    "loss",
    [
        VALUED,
        algorithm_loss(LEARNER.model_copy(update={"loss": "gspo", "aggregation": "sequence"})),
        algorithm_loss(
            LEARNER.model_copy(
                update={
                    "importance_correction": "truncated",
                    "importance_cap": 1.5,
                    "importance_level": "sequence",
                }
            )
        ),
    ],
    ids=["ppo", "gspo", "corrected"],
)
def test_keeps_gradient_across_micro_batches_and_halves(model_dir, learner, batch, loss, tmp_path):
    batch = judged(batch)
    learner.create_policy("p", ADAPTERS[0], seed=1, value_head=True)
    train(learner, batch)
    learner.save("p", tmp_path / "p", step=1, policy_version=1)
    whole, _ = gradient(learner, batch, loss)
    cut = Learner(model_dir, micro_batch_tokens=12)
    cut.load("p", tmp_path / "p", ADAPTERS[0], value_head=True)
    assert_close(gradient(cut, batch, loss)[0], whole)
    np.testing.assert_allclose(
        np.concatenate(cut.values("p", batch)), np.concatenate(learner.values("p", batch)), atol=1e-6
    )
    totals = BatchTotals.of(batch)
    halves = [gradient(learner, part, loss, totals=totals)[0] for part in (batch[:4], batch[4:])]
    assert_close({name: halves[0][name] + halves[1][name] for name in whole}, whole)


@pytest.mark.parametrize("family", ["softcap", "scaled"])
def test_supports_values_for_models_with_scaled_logits(family, make_batch, tmp_path):
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 61,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.2,
        "pad_token_id": 0,
    }
    made = {
        "softcap": lambda: Gemma2ForCausalLM(
            Gemma2Config(**sizes, head_dim=8, final_logit_softcapping=2.0, attn_logit_softcapping=0.5)
        ),
        "scaled": lambda: GraniteForCausalLM(GraniteConfig(**sizes, logits_scaling=3.0)),
    }
    made[family]().save_pretrained(tmp_path / "model")
    learner, batch = Learner(tmp_path / "model"), judged(make_batch(seed=1))
    learner.create_policy("p", FullParameters(), seed=1, value_head=True)
    train(learner, batch, steps=2)
    model, head = reloaded(learner, tmp_path / "step-1")
    for sequence, values in zip(batch, learner.values("p", batch), strict=True):
        expected, _ = plain_values(model, head, sequence)
        np.testing.assert_allclose(values, expected.detach(), atol=2e-5)
    quiet = [dataclasses.replace(sequence, advantage=0.0) for sequence in batch]
    found, _ = gradient(learner, quiet, algorithm_loss(PPO(value_coefficient=1.0)))
    for sequence in batch:
        values, _ = plain_values(model, head, sequence)
        targets = torch.tensor(sequence.value_targets, dtype=torch.float32)
        (0.5 * (values - targets) ** 2).sum().div(sum(sum(s.loss_mask) for s in batch)).backward()
    wanted = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert_close({name: found[name] for name in wanted}, wanted, tolerance=2e-5)


@KINDS
def test_leaves_policys_bits_alone_when_no_loss_asks_for_head(model_dir, batch, adapter):
    found = []
    for value_head in (False, True):
        learner = Learner(model_dir)
        learner.create_policy("p", adapter, seed=1, value_head=value_head)
        train(learner, batch, policy_loss(), steps=2)
        found.append(weights_sha256(learner.weights("p")))
    assert found[0] == found[1]


def test_learns_bits_of_training_alone_beside_policy_with_a_head(model_dir, batch):
    alone, beside = Learner(model_dir), Learner(model_dir)
    beside.create_policy("valued", ADAPTERS[0], seed=2, value_head=True)
    for learner in (alone, beside):
        learner.create_policy("p", ADAPTERS[0], seed=1)
        for _ in range(2):
            if learner is beside:
                train(learner, judged(batch), policy="valued")
            train(learner, batch, policy_loss())
    assert weights_sha256(alone.weights("p")) == weights_sha256(beside.weights("p"))


@KINDS
def test_trains_two_steps_twice_over_checkpoint_bit_equal_to_four(model_dir, batch, adapter, tmp_path):
    batch = judged(batch)
    learner = Learner(model_dir)
    learner.create_policy("p", adapter, seed=1, value_head=True)
    train(learner, batch, steps=2)
    learner.save("p", tmp_path / "step-2", step=2, policy_version=2)
    train(learner, batch, steps=2)
    straight = learner.save("p", tmp_path / "step-4", step=4, policy_version=4)
    resumed = Learner(model_dir)
    resumed.load("p", tmp_path / "step-2", adapter, value_head=True)
    train(resumed, batch, steps=2)
    again = resumed.save("p", tmp_path / "again", step=4, policy_version=4)
    assert again.files == straight.files
    assert again.weights_sha256 == straight.weights_sha256
    assert FILE in straight.files


@pytest.fixture
def saved(learner, batch, tmp_path):
    learner.create_policy("p", ADAPTERS[0], seed=1, value_head=True)
    train(learner, judged(batch))
    learner.save("p", tmp_path / "p", step=1, policy_version=1)
    return tmp_path / "p"


def test_names_damaged_head_and_loads_nothing(learner, saved):
    content = bytearray((saved / FILE).read_bytes())
    content[-1] ^= 1
    (saved / FILE).write_bytes(content)
    with pytest.raises(CheckpointCorruptError):
        learner.load("q", saved, ADAPTERS[0], value_head=True)
    assert learner.policy_ids == ["p"]


def test_resumes_with_a_head_only_if_training_had_one(learner, saved, tmp_path):
    with pytest.raises(ConflictError, check=lambda error: error.code == "other_parameters"):
        learner.load("q", saved, ADAPTERS[0])
    learner.create_policy("headless", ADAPTERS[0], seed=1)
    learner.save("headless", tmp_path / "headless", step=0, policy_version=0)
    with pytest.raises(ConflictError, check=lambda error: error.code == "no_value_head"):
        learner.load("q", tmp_path / "headless", ADAPTERS[0], value_head=True)
    assert learner.policy_ids == ["p", "headless"]


def test_takes_over_renews_or_drops_a_head_in_another_training(learner, saved, batch, tmp_path):
    learner.load("taken", saved, ADAPTERS[0], fresh_optimizer=True, value_head=True)
    np.testing.assert_array_equal(
        np.concatenate(learner.values("taken", batch)), np.concatenate(learner.values("p", batch))
    )
    learner.load("without", saved, ADAPTERS[0], fresh_optimizer=True)
    with pytest.raises(ConflictError, check=lambda error: error.code == "no_value_head"):
        learner.values("without", batch)
    learner.save("without", tmp_path / "without", step=0, policy_version=0)
    learner.load("new", tmp_path / "without", ADAPTERS[0], fresh_optimizer=True, value_head=True)
    assert not np.concatenate(learner.values("new", batch)).any()


def test_publishes_weights_without_the_head(learner, saved):
    assert not [name for name in learner.weights("p").tensors if "value" in name]
    assert not [name for name in load_file(saved / "adapter_model.safetensors") if "value" in name]


def test_clips_head_gradient_separately_with_a_rate_of_its_own(learner, batch):
    batch = judged(batch)
    learner.create_policy("p", ADAPTERS[0], seed=1, value_head=True)
    loud = algorithm_loss(PPO(value_coefficient=1e6))
    learner.forward_backward("p", batch, loud)
    stepped = learner.optim_step("p", learning_rate=1e-3, max_grad_norm=0.1, value_learning_rate=0.25)
    assert stepped.metrics["value_grad_norm"] > 100
    bias = next(p for name, p in learner._policies["p"].value_head.parameters.items() if "bias" in name)
    # AdamW's first step moves every parameter by its learning rate.
    assert abs(bias.item()) == pytest.approx(0.25, rel=1e-3)


def test_leaves_policy_and_head_as_they_were_without_finite_gradient(learner, saved, batch):
    weights, values = weights_sha256(learner.weights("p")), learner.values("p", batch)
    learner.forward_backward("p", judged(batch), VALUED)
    learner.gradient("p")["value_head.bias"].fill_(float("nan"))
    with pytest.raises(NonFiniteLossError):
        learner.optim_step("p", learning_rate=1e-2)
    assert weights_sha256(learner.weights("p")) == weights
    for before, after in zip(values, learner.values("p", batch), strict=True):
        np.testing.assert_array_equal(before, after)


def test_rejects_value_loss_without_a_head_and_leaves_no_gradient(learner, batch):
    learner.create_policy("p", ADAPTERS[0], seed=1)
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "value_targets"):
        learner.forward_backward("p", judged(batch), VALUED)
    assert not learner.has_gradient("p")


def test_requires_targets_of_every_sampled_token(batch):
    with pytest.raises(InvalidRequestError) as caught:
        dataclasses.replace(batch[0], value_targets=[1.0])
    assert caught.value.field == "value_targets"


@KINDS
def test_trains_values_to_what_they_are_told(learner, batch, adapter):
    learner.create_policy("p", adapter, seed=1, value_head=True)
    quiet = [dataclasses.replace(s, advantage=0.0) for s in judged(batch)]
    loss = algorithm_loss(PPO(value_coefficient=1.0))
    first = learner.forward_backward("p", quiet, loss).metrics["value_loss"]
    learner.forget_gradient("p")
    for _ in range(40):
        last = learner.forward_backward("p", quiet, loss).metrics["value_loss"]
        learner.optim_step("p", learning_rate=5e-3, value_learning_rate=0.1)
    assert last < 0.5 * first
