import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tinkergym.policy_losses import kl_estimates

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
