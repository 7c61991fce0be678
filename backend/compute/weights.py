"""A policy's weights in transit: from the learner to the engine, the checkpoint and the hash.

Uses only tensors and names, so that learner and engines may both import it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from tinkergym.errors import InvalidRequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterWeights:
    """A LoRA adapter in PEFT's key format.

    `tensors` maps `base_model.model.<module path>.lora_A.weight` ([rank, in], float32) and `...lora_B.weight`
    ([out, rank], float32). The adapter adds `scaling * B @ A` to each named linear's weight.
    """

    rank: int
    alpha: float
    tensors: Mapping[str, torch.Tensor]
    rslora: bool = False

    @property
    def scaling(self) -> float:
        """The factor of `B @ A`: `alpha / rank`, or `alpha / sqrt(rank)` for rsLoRA."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class FullWeights:
    """Every parameter of the model under its `state_dict` name."""

    tensors: Mapping[str, torch.Tensor]


PolicyWeights = AdapterWeights | FullWeights
_hashing = ThreadPoolExecutor(4, thread_name_prefix="weights-hash")


def weights_sha256(weights: PolicyWeights) -> str:
    """Hash names, dtypes, shapes and bytes in name order; equal bits give equal hashes on any machine.

    Other threads run meanwhile and must not write to the tensors.
    """
    digest = hashlib.sha256()
    for name in sorted(weights.tensors):
        tensor = weights.tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()


def hash_aside(weights: PolicyWeights) -> Future[str]:
    """Start `weights_sha256` in another thread; a GiB takes half a second, during which it can be sent."""
    return _hashing.submit(weights_sha256, weights)


def require_finite(weights: PolicyWeights) -> None:
    """Raise InvalidRequestError if a tensor contains NaN or infinity."""
    for name, tensor in weights.tensors.items():
        # A finite sum has finite terms, and takes a fifth of the time; a sum that is not finite may still
        # have finite terms.
        if not torch.isfinite(tensor.sum()) and not torch.isfinite(tensor).all():
            raise InvalidRequestError(
                f"the weights {name!r} contain NaN or infinity",
                hint="the learner diverged; lower the learning rate and resume from a checkpoint",
                code="not_finite",
            )
