import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.learner.learner import Learner
from backend.learner.token_loss import policy_loss
from tinkergym.advantages import distillation_advantages
from tinkergym.errors import ConflictError, InvalidRequestError
from tinkergym.policy_losses import LossTokens
from tinkergym.schema.jobs.parts import FullParameters, LoRA

LOSS = policy_loss(loss="importance_sampling")
"""With which distillation jobs train."""
STUDENT, TEACHER = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.1, 0.3, 0.2, 0.4])
"""What both say of the next token, of which there are four."""


def test_matches_golden_values():
    # The teacher finds the first token half as likely as the student, the second twice, the third as likely.
    found = distillation_advantages(np.log([0.5, 0.1, 0.25]), np.log([0.25, 0.2, 0.25]))
    np.testing.assert_allclose(found / math.log(2), [-1.0, 1.0, 0.0], atol=1e-12)


def test_compares_logprobs_in_float32_as_float64():
    found = distillation_advantages(np.float32([-1e-9]), np.float32([-20.0]))
    assert found.dtype == np.float64
    assert found[0] > -20.0  # which it is in float32
    assert found[0] == pytest.approx(-20.0 + 1e-9, abs=1e-12)


def test_averages_over_all_tokens_to_minus_reverse_divergence():
    mean = (STUDENT * distillation_advantages(np.log(STUDENT), np.log(TEACHER))).sum()
    assert mean == pytest.approx(-(STUDENT * np.log(STUDENT / TEACHER)).sum(), abs=1e-12)


LOGPROBS = st.lists(st.tuples(st.floats(-30, 0), st.floats(-30, 0)), min_size=1)


@given(LOGPROBS)
def test_turns_sign_when_student_and_teacher_swap(pairs):
    own, other = (np.asarray(some) for some in zip(*pairs, strict=True))
    there, back = distillation_advantages(own, other), distillation_advantages(other, own)
    assert (there == -back).all()
    assert not distillation_advantages(own, own).any()


# --- as the loss that a job trains with ------------------------------------------------------------------


@pytest.mark.parametrize("moved_by", [0.0, 0.3])
def test_has_gradient_of_finite_differences_of_the_reverse_divergence(moved_by):
    """Over all tokens of one place, as the student sampled them and after it has moved on."""
    sampling, teacher = torch.tensor(np.log(STUDENT)), torch.tensor(np.log(TEACHER))
    drawn = torch.randn(4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def divergence(logits):
        policy = torch.log_softmax(logits, -1)
        # Later the verdict is still the one on the student that sampled.
        judged = sampling if moved_by else policy
        return float((policy.exp() * (judged - teacher)).sum())

    at = sampling + moved_by * drawn
    logits = at.clone().requires_grad_()
    tokens = LossTokens(
        learner_logprobs=torch.log_softmax(logits, -1),
        sampling_logprobs=sampling,
        advantages=torch.tensor(distillation_advantages(sampling.numpy(), teacher.numpy())),
    )
    (sampling.exp() * LOSS.token_losses(tokens).losses).sum().backward()
    step = 1e-6 * torch.eye(4, dtype=torch.float64)
    slopes = [(divergence(at + one) - divergence(at - one)) / 2e-6 for one in step]
    assert logits.grad.tolist() == pytest.approx(slopes, abs=1e-8)


def judged(batch, own, teacher):
    """The batch as the student sampled it, with the teacher's verdict at the sampled places only."""
    found = []
    for sequence, sampling, other in zip(batch, own, teacher, strict=True):
        mask = np.asarray(sequence.loss_mask)
        logprobs, advantages = np.full(len(mask), np.nan), np.full(len(mask), np.nan)
        logprobs[mask], advantages[mask] = sampling, distillation_advantages(sampling, other)
        found.append(
            dataclasses.replace(
                sequence,
                sampling_logprobs=[p if m else None for p, m in zip(logprobs.tolist(), mask, strict=True)],
                advantage=advantages.tolist(),
            )
        )
    return found


def test_has_learners_gradient_of_finite_differences(smooth_model_dir, assert_slopes_of, batch):
    learner = Learner(smooth_model_dir)
    learner.create_policy("p", FullParameters(), seed=0)
    rng, now = np.random.default_rng(0), learner.logprobs("p", batch)
    # The student has moved on a little since it sampled; the teacher is far away.
    own, teacher = ([x + rng.normal(0, size, len(x)) for x in now] for size in (0.1, 1.0))
    learner.forward_backward("p", judged(batch, own, teacher), LOSS)
    verdicts = torch.from_numpy(np.concatenate(teacher) - np.concatenate(own))
    sampling = torch.from_numpy(np.concatenate(own))
    assert_slopes_of(
        learner.gradient("p"),
        batch,
        lambda logprobs: -(verdicts * torch.exp(torch.cat(logprobs) - sampling)).mean(),
    )


def test_learns_nothing_from_a_teacher_that_agrees(learner, batch):
    learner.create_policy("p", LoRA(rank=4), seed=0)
    own = learner.logprobs("p", batch)
    assert learner.forward_backward("p", judged(batch, own, own), LOSS).loss == 0.0
    assert not any(tensor.any() for tensor in learner.gradient("p").values())


@pytest.mark.parametrize("verdict", [-math.inf, math.nan])
def test_rejects_teacher_without_a_finite_logprob(learner, batch, verdict):
    learner.create_policy("p", LoRA(rank=4), seed=0)
    own = learner.logprobs("p", batch)
    teacher = [logprobs - 1.0 for logprobs in own]
    teacher[2][-1] = verdict
    with pytest.raises(InvalidRequestError) as caught:
        learner.forward_backward("p", judged(batch, own, teacher), LOSS)
    assert caught.value.field == "advantage"
    with pytest.raises(ConflictError, check=lambda error: error.code == "no_gradient"):
        learner.optim_step("p", learning_rate=1e-3)
