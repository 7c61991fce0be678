"""What a policy's version consists of: enough to fetch it piece by piece and to know that it is right."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Self

import torch
from pydantic import Field, model_validator

from backend.compute.weights import AdapterWeights, FullWeights, PolicyWeights
from tinkergym.schema.model import WireModel

MOST_TENSORS = 100_000
_DTYPES = {str(kind): kind for kind in (torch.float32, torch.bfloat16, torch.float16, torch.float64)}

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class TensorEntry(WireModel):
    """One tensor of a version."""

    name: str
    dtype: str
    shape: list[Annotated[int, Field(ge=0)]] = Field(max_length=16)
    sha256: Sha256
    """Of its bytes."""

    @property
    def kind(self) -> torch.dtype:
        """Its type."""
        return _DTYPES[self.dtype]

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return math.prod(self.shape) * self.kind.itemsize

    @model_validator(mode="after")
    def _has_a_known_type(self) -> Self:
        if self.dtype not in _DTYPES:
            raise ValueError(f"weights of type {self.dtype} cannot be sent; known: {', '.join(_DTYPES)}")
        return self


class AdapterShape(WireModel):
    """What an adapter has besides its tensors."""

    rank: int
    alpha: float
    rslora: bool


class WeightManifest(WireModel):
    """The tensors of one version, with a hash of each and of them all."""

    sha256: Sha256
    """See `weights_sha256`."""
    adapter: AdapterShape | None
    """None for full weights."""
    tensors: list[TensorEntry] = Field(max_length=MOST_TENSORS)

    @property
    def sizes(self) -> dict[str, int]:
        """The size in bytes of each distinct content, by its hash; equal tensors are sent once."""
        return {entry.sha256: entry.size for entry in self.tensors}

    @model_validator(mode="after")
    def _equal_hashes_have_equal_sizes(self) -> Self:
        sizes = self.sizes
        if any(sizes[entry.sha256] != entry.size for entry in self.tensors):
            raise ValueError("two tensors of different size have the same hash")
        return self

    @classmethod
    def of(cls, weights: PolicyWeights, sha256: str, hashes: Mapping[str, str]) -> Self:
        """Describe weights; `hashes` has the hash of each tensor's bytes, by name."""
        shape = None
        if isinstance(weights, AdapterWeights):
            shape = AdapterShape(rank=weights.rank, alpha=weights.alpha, rslora=weights.rslora)
        entries = [
            TensorEntry(name=name, dtype=str(one.dtype), shape=list(one.shape), sha256=hashes[name])
            for name, one in weights.tensors.items()
        ]
        return cls(sha256=sha256, adapter=shape, tensors=entries)

    def weights(self, tensors: Mapping[str, torch.Tensor]) -> PolicyWeights:
        """Return the weights with these tensors, by name."""
        if self.adapter is None:
            return FullWeights(tensors=tensors)
        return AdapterWeights(tensors=tensors, **self.adapter.model_dump())
