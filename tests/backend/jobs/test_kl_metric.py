"""The KL to the beginning as a metric of jobs without a KL penalty."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.learner.learner import Learner
from tests.backend.watched_jobs import job_spec
from tinkergym.algorithms import GRPO
from tinkergym.policy_losses import kl_estimates
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import FullParameters


@pytest.fixture
def asked(monkeypatch):
    """How many sequences the policies other than the job's own were asked about, in order."""
    seen: list = []
    logprobs = Learner.logprobs

    def spy(self, policy_id, sequences, *arguments, **settings):
        if policy_id is None:
            seen.append(len(sequences))
        return logprobs(self, policy_id, sequences, *arguments, **settings)

    monkeypatch.setattr(Learner, "logprobs", spy)
    return seen


def kl_by_step(lab, **settings):
    algorithm = GRPO(group_size=2, groups_per_step=8, learning_rate=3e-2)
    job_id = lab.start(steps=3, algorithm=algorithm, **settings)
    lab.play_on(job_id)
    assert lab.state(job_id) is JobState.COMPLETED
    return {event.step: event.metrics.get("kl") for event in lab.events(job_id, "step")}


def test_estimates_kl_on_a_few_sequences_where_it_is_due(lab, asked):
    found = kl_by_step(lab, kl_metric_every=1)
    assert found[1] == pytest.approx(0.0, abs=1e-6)  # the first version is the beginning itself
    assert found[3] > 1e-6
    assert asked[-3:] == [2, 2, 2]


def test_pays_nothing_for_kl_where_it_is_off_or_early(lab, asked):
    assert set(kl_by_step(lab, kl_metric_every=0).values()) == {None}
    assert set(kl_by_step(lab).values()) == {None}  # every tenth step
    # What the certificate asks of the first adapter, once per job.
    assert len(asked) == 2


def test_derives_when_it_is_measured_from_its_cost():
    assert job_spec().kl_measured_every == 10
    assert job_spec(kl_metric_every=3).kl_measured_every == 3
    whole = job_spec(adapter=FullParameters())
    assert whole.kl_measured_every == 10
    assert whole.model_copy(update={"initial_policy": "job-1@4"}).kl_measured_every == 0
    penalty = GRPO(group_size=2, groups_per_step=2, kl_coefficient=0.1)
    assert job_spec(algorithm=penalty).kl_measured_every == 0
    with pytest.raises(ValueError, match="kl_metric_every"):
        job_spec(algorithm=penalty, kl_metric_every=3)


POLICY, REFERENCE = np.array([-1.0, -0.2, -3.0]), np.array([-1.5, -0.2, -1.0])


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("k1", [0.5, 0.0, -2.0]),
        ("k2", [0.125, 0.0, 2.0]),
        ("k3", [np.exp(-0.5) - 1 + 0.5, 0.0, np.exp(2.0) - 1 - 2.0]),
    ],
)
def test_matches_golden_values(estimator, expected):
    found = kl_estimates(torch.tensor(POLICY), torch.tensor(REFERENCE), estimator)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_gives_divergence_by_unbiased_estimators_over_all_tokens(estimator):
    policy, reference = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.5, 0.3])
    divergence = (policy * np.log(policy / reference)).sum()
    found = kl_estimates(torch.tensor(np.log(policy)), torch.tensor(np.log(reference)), estimator)
    assert (policy * found.numpy()).sum() == pytest.approx(divergence)


def test_has_gradients_that_the_docstring_names():
    """k1: 0 on average. k2: of KL(policy || reference). k3: of KL(reference || policy)."""
    logits = torch.tensor([0.3, -0.5, 1.2], dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64), -1)
    policy = torch.log_softmax(logits, -1)

    def averaged(estimator):
        expected = (policy.detach().exp() * kl_estimates(policy, reference, estimator)).sum()
        return torch.autograd.grad(expected, logits, retain_graph=True)[0]

    forward = (policy.exp() * (policy - reference)).sum()
    backward = (reference.exp() * (reference - policy)).sum()
    torch.testing.assert_close(averaged("k1"), torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(averaged("k2"), torch.autograd.grad(forward, logits, retain_graph=True)[0])
    torch.testing.assert_close(averaged("k3"), torch.autograd.grad(backward, logits, retain_graph=True)[0])


@given(st.lists(st.tuples(st.floats(-20, 0), st.floats(-20, 0)), min_size=1))
def test_keeps_k2_and_k3_nonnegative_and_zero_for_equal_policies(pairs):
    policy, reference = (torch.tensor(some, dtype=torch.float64) for some in zip(*pairs, strict=True))
    for estimator in ("k2", "k3"):
        assert (kl_estimates(policy, reference, estimator) >= -1e-12).all()
        assert not kl_estimates(policy, policy, estimator).any()
