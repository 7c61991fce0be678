"""Full-parameter policies of which two real processes hold a part each, against one learner that has all."""

import dataclasses

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from backend.compute.weights import weights_sha256
from backend.errors import BlobsUnavailableError
from backend.learner.learner import Learner
from backend.learner.parallel.data_parallel import DataParallelLearner
from backend.learner.token_loss import algorithm_loss, policy_loss
from tinkergym.algorithms import PPO
from tinkergym.errors import (
    ConflictError,
    InternalServiceError,
    InvalidRequestError,
    NonFiniteLossError,
)
from tinkergym.schema.jobs.parts import FullParameters

FULL = FullParameters()
UNCLIPPED = policy_loss(clip_low=1.0, clip_high=100.0)


@pytest.fixture
def group(divided_group):
    return divided_group


@pytest.fixture
def policy(group):
    group.create_policy("p", FULL, seed=0)
    yield "p"
    group.drop("p")


def train(learner, policy_id, batch, *, steps=1):
    for _ in range(steps):
        learner.forward_backward(policy_id, batch, UNCLIPPED)
        learner.optim_step(policy_id, learning_rate=1e-3)
    return weights_sha256(learner.weights(policy_id))


def test_has_gradient_of_one_with_unequal_micro_batches_on_ranks(group, learner, batch, policy):
    learner.create_policy(policy, FULL, seed=0)
    # All that one rank has is only looked at, while the other learns.
    halves = [dataclasses.replace(s, advantage=0.0 if i % 2 else 1.0) for i, s in enumerate(batch)]
    for part in (batch, halves, batch[:3], batch[:1]):
        for each in (group, learner):
            each.forward_backward(policy, part, UNCLIPPED)
        expected, found = learner.gradient(policy), group.gradient(policy)
        scale = max(float(gradient.abs().max()) for gradient in expected.values())
        assert scale > 0
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, atol=1e-6 * scale, rtol=1e-5)
        steps = [each.optim_step(policy, learning_rate=1e-3) for each in (group, learner)]
        assert steps[0].grad_norm == pytest.approx(steps[1].grad_norm, rel=1e-4)
        for one, other in zip(group.logprobs(policy, part), learner.logprobs(policy, part), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)


def test_copies_tied_weights_once(tied_model_dir):
    learner = Learner(tied_model_dir)
    learner.create_policy("job", FULL, seed=0)
    tensors = learner.weights("job").tensors
    assert tensors["lm_head.weight"] is tensors["model.embed_tokens.weight"]


@pytest.mark.full("starts two ranks of its own")
def test_has_gradient_of_one_for_tied_weights_and_saves_once(tied_model_dir, tmp_path, batch):
    single = Learner(tied_model_dir)
    single.create_policy("p", FULL, seed=0)
    with DataParallelLearner(tied_model_dir, ranks=2, silence_seconds=240.0, divide_from=1) as group:
        group.create_policy("p", FULL, seed=0)
        for each in (group, single):
            for _ in range(2):  # gradients of two calls add up
                each.forward_backward("p", batch, UNCLIPPED)
        expected, found = single.gradient("p"), group.gradient("p")
        scale = max(float(gradient.abs().max()) for gradient in expected.values())
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, atol=1e-6 * scale, rtol=1e-5)
        group.optim_step("p", learning_rate=1e-3)
        group.save("p", tmp_path / "step-1", step=1, policy_version=1)
        weights = group.weights("p")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "step-1")
    for name, parameter in plain.named_parameters(remove_duplicate=False):
        torch.testing.assert_close(parameter.detach(), weights.tensors[name], atol=0.0, rtol=0.0)
    assert "lm_head.weight" not in load_file(tmp_path / "step-1" / "model.safetensors")


@pytest.mark.full("starts two ranks of its own")
def test_keeps_float32_parts_and_gradients_of_bfloat16_layers(model_dir, learner, batch):
    learner.create_policy("p", FULL, seed=0)
    learner.forward_backward("p", batch, UNCLIPPED)
    expected = torch.cat([gradient.flatten() for gradient in learner.gradient("p").values()])
    with DataParallelLearner(
        model_dir, ranks=2, dtype=torch.bfloat16, silence_seconds=240.0, divide_from=1
    ) as group:
        group.create_policy("p", FULL, seed=0)
        assert weights_sha256(group.weights("p")) == weights_sha256(learner.weights("p"))
        group.forward_backward("p", batch, UNCLIPPED)
        found = torch.cat([gradient.flatten() for gradient in group.gradient("p").values()])
        assert found.dtype == torch.float32
        assert torch.cosine_similarity(found, expected, dim=0) > 0.99
        assert not torch.equal(found, expected)


def test_saves_transformers_model_as_checkpoint_and_resumes_to_the_bit(
    group, learner, batch, policy, tmp_path
):
    train(group, policy, batch, steps=2)
    manifest = group.save(policy, tmp_path / "step-2", step=2, policy_version=2)
    smooth = train(group, policy, batch, steps=2)

    group.load("again", tmp_path / "step-2", FULL)
    assert weights_sha256(group.weights("again")) == manifest.weights_sha256
    assert train(group, "again", batch, steps=2) == smooth
    group.drop("again")

    learner.load("alone", tmp_path / "step-2", FULL)
    assert weights_sha256(learner.weights("alone")) == manifest.weights_sha256
    plain = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "step-2").named_parameters())
    for name, tensor in learner.weights("alone").tensors.items():
        if name in plain:
            torch.testing.assert_close(plain[name].detach(), tensor, atol=0.0, rtol=0.0)


def test_continues_checkpoint_of_one_process_divided(group, learner, batch, tmp_path):
    learner.create_policy("p", FULL, seed=0)
    train(learner, "p", batch)
    learner.save("p", tmp_path / "step-1", step=1, policy_version=1)
    group.load("taken-over", tmp_path / "step-1", FULL)
    assert weights_sha256(group.weights("taken-over")) == weights_sha256(learner.weights("p"))
    for each, name in ((group, "taken-over"), (learner, "p")):
        train(each, name, batch)
    found, expected = (each.weights(name).tensors for each, name in ((group, "taken-over"), (learner, "p")))
    for name, tensor in expected.items():
        # AdamW with its moments taken over; without them the step would be another by far more.
        assert (found[name] - tensor).abs().mean() < 1e-6, name
    group.drop("taken-over")


def test_learns_value_head_beside_it_as_in_one_process(group, learner, batch):
    rng = np.random.default_rng(0)
    batch = [dataclasses.replace(s, value_targets=rng.normal(0, 1, sum(s.loss_mask))) for s in batch]
    for each in (group, learner):
        each.create_policy("valued", FULL, seed=0, value_head=True)
        for _ in range(2):
            each.forward_backward("valued", batch, algorithm_loss(PPO(value_coefficient=0.5)))
            each.optim_step("valued", learning_rate=1e-4, value_learning_rate=0.1)
    for part in (batch, batch[:1]):
        for one, other in zip(group.values("valued", part), learner.values("valued", part), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)
            assert other.any()
    group.drop("valued")


def test_leaves_no_rank_waiting_on_a_refusal(group, batch, policy):
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "token_ids"):
        group.forward_backward(
            policy,
            [*batch, dataclasses.replace(batch[0], token_ids=[10**6] * len(batch[0].token_ids))],
            policy_loss(),
        )
    with pytest.raises(ConflictError, check=lambda error: error.code == "no_value_head"):
        group.values(policy, batch[:1])
    before = weights_sha256(group.weights(policy))
    huge = [dataclasses.replace(s, advantage=1e37) for s in batch]
    group.forward_backward(policy, huge, UNCLIPPED)
    group.forward_backward(policy, huge, UNCLIPPED)
    with pytest.raises(NonFiniteLossError):
        group.optim_step(policy, learning_rate=1e-3)
    with pytest.raises(ConflictError, check=lambda error: error.code == "gradient_pending"):
        group.forward_backward(policy, batch, policy_loss())
        group.save(policy, "nowhere", step=1, policy_version=1)
    assert weights_sha256(group.weights(policy)) == before


def test_fails_only_the_policy_whose_folder_cannot_be_written(group, batch, policy, tmp_path):
    before = train(group, policy, batch)
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(InternalServiceError):
        group.save(policy, tmp_path / "file" / "step-1", step=1, policy_version=1)
    assert not group.broken
    assert weights_sha256(group.weights(policy)) == before


def test_keeps_unmakeable_policy_off_every_rank(group, tmp_path):
    before = group.policy_ids
    with pytest.raises(BlobsUnavailableError):
        group.load("lost", tmp_path / "nowhere", FULL)
    assert group.policy_ids == before
