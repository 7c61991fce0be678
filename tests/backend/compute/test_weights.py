from __future__ import annotations

import pytest
import torch

from backend.compute.weights import FullWeights, require_finite, weights_sha256
from tinkergym.errors import InvalidRequestError


def test_hashes_names_shapes_dtypes_and_numbers_apart_down_to_one():
    tensors = [
        {"a": torch.tensor(1.0)},
        {"a": torch.tensor(2.0)},
        {"a": torch.tensor([1.0])},
        {"b": torch.tensor(1.0)},
        {"a": torch.tensor(1.0, dtype=torch.float64)},
        {"a": torch.zeros(0)},
        {"a": torch.zeros(0, 2)},
    ]
    hashes = [weights_sha256(FullWeights(tensors=one)) for one in tensors]
    assert len(set(hashes)) == len(hashes)
    assert weights_sha256(FullWeights(tensors={"a": torch.tensor(1.0)})) == hashes[0]


def test_hashes_as_the_stored_checkpoints_name():
    tensors = {"b": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).t(), "a": torch.tensor([1.5, -2.0])}
    known = "d687034a43b6f3ccb1666d7767aef3a3bec750e60458d6a853c0674629e83af1"
    assert weights_sha256(FullWeights(tensors=tensors)) == known


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rejects_weights_that_are_not_finite_by_name(bad, dtype):
    tensors = {"well": torch.ones(3, dtype=dtype), "ill": torch.tensor([1.0, bad, float("inf")], dtype=dtype)}
    with pytest.raises(InvalidRequestError, check=lambda error: error.code == "not_finite"):
        require_finite(FullWeights(tensors=tensors))


def test_calls_large_weights_finite_whose_sum_overflows_their_type():
    require_finite(FullWeights(tensors={"large": torch.full((4,), 60000.0, dtype=torch.float16)}))
    require_finite(FullWeights(tensors={"large": torch.full((4,), 3e38), "none": torch.zeros(0)}))
