import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tinkergym.algorithms import GRPO
from tinkergym.errors import InvalidRequestError
from tinkergym.policy_losses import importance_ratios, importance_weights

RATIOS = torch.tensor([0.1, 0.5, 1.0, 2.0, 7.0])


@pytest.mark.parametrize(
    ("kind", "expected"), [("truncated", [0.1, 0.5, 1.0, 2.0, 2.0]), ("masked", [0.0, 0.5, 1.0, 2.0, 0.0])]
)
def test_matches_golden_values(kind, expected):
    np.testing.assert_allclose(importance_weights(RATIOS, kind=kind, cap=2.0), expected, rtol=1e-6)


def test_takes_finite_ratios_of_the_two_policies():
    proximal, sampling = torch.tensor([-1.0, -1.0, 0.0]), torch.tensor([-1.0, -2.0, -1e30])
    ratios = importance_ratios(proximal.requires_grad_(), sampling)
    np.testing.assert_allclose(ratios[:2], [1.0, np.e], rtol=1e-6)
    assert ratios.isfinite().all() and not ratios.requires_grad


@given(st.lists(st.floats(1e-6, 1e6), min_size=1), st.floats(1.0, 100.0))
def test_caps_every_weight_and_never_corrects_agreement(ratios, cap):
    some = torch.tensor([1.0, *ratios], dtype=torch.float64)
    for kind in ("truncated", "masked"):
        weights = importance_weights(some, kind=kind, cap=cap)
        assert (weights <= cap).all() and (weights <= some).all()
        assert weights[0] == 1.0


def test_rejects_cap_below_one():
    with pytest.raises(InvalidRequestError) as refused:
        GRPO(importance_correction="truncated", importance_cap=0.5)
    assert refused.value.field == "GRPO.importance_cap"
