from __future__ import annotations

import torch

from backend.weights import FullWeights, weights_sha256


def test_a_hash_tells_names_shapes_dtypes_and_numbers_apart_also_of_a_single_number():
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
