"""How much memory of a GPU a model needs: a formula, by method, number format and division.

Checked against measured models on a CPU (`tests/backend/planning/test_memory_needs.py`). It was not measured
on a GPU, so it is generous where it guesses: `CONTEXT_BYTES`, `_USABLE`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from backend.compute.supported_models import BYTES_OF, Quantization
from backend.planning.model_shape import ModelShape

Method = Literal["lora", "full"]
CONTEXT_BYTES = 10**9
"""Of each process on a GPU: CUDA's context, workspaces of libraries, fragments."""
_USABLE = 0.95
"""Fraction of a GPU's memory that is planned."""
ADAPTER_RANK = 16
"""The rank of the adapters that are planned for."""
ADAPTERS = 4
"""How many of them a learner and an engine hold at a time; one policy of all parameters counts as much."""
MERGED_ADAPTERS = (2, 1, 0)
"""Adapters with merged weights in an engine on a GPU, each a copy of all linear layers: two where they fit,
as in a game of two policies. Without, an adapter's products are added layer by layer."""
WORK_TOKENS = (16_384, 4096)
"""Tokens for which a learner's memory is planned: as many as fill a GPU, or where that is too much, fewer."""
TEACHER_TOKENS = WORK_TOKENS[-1]
"""Tokens that a teacher on another base model computes at a time on a GPU."""
CACHE_TOKENS = 32_768
"""Tokens for which an engine's cache is planned, at least."""
_TRAINED_BYTES = 16
"""Of each trained number: weight, gradient and two moments, all float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerNeeds:
    """Memory of a learner's rank on its GPU, in bytes."""

    resident: int
    """Weights, gradients, optimizer state."""
    work: int
    """Activations of a micro-batch."""

    @property
    def total(self) -> int:
        """While it learns."""
        return self.resident + self.work


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNeeds:
    """Memory of an engine on each of its GPUs, in bytes."""

    weights: int
    """With its policies."""
    cache: int

    @property
    def total(self) -> int:
        """While it samples."""
        return self.weights + self.cache


def usable_bytes(gpu_bytes: int) -> int:
    """Return how much of a GPU's memory is planned."""
    return int(gpu_bytes * _USABLE)


def learner_needs(
    shape: ModelShape,
    method: Method,
    *,
    number_bytes: int,
    divided_by: int = 1,
    tokens: int = WORK_TOKENS[-1],
    quantized: Quantization = "",
) -> LearnerNeeds:
    """Return what a rank needs.

    Args:
        shape: The model.
        method: Adapters only, or one policy of all parameters besides.
        number_bytes: Of the service's number format: 4 or 2.
        divided_by: Ranks over which a policy of all parameters is sharded; the base model never is.
        tokens: Computed at a time.
        quantized: The format of the linear layers' weights, if it is another.
    """
    base = base_bytes(shape, number_bytes=number_bytes, quantized=quantized)
    trained = _TRAINED_BYTES * ADAPTERS * shape.adapter_parameters(ADAPTER_RANK)
    if method == "full":
        half = number_bytes < 4
        if divided_by > 1:
            # Each rank reads all of it in float32, and then keeps its part.
            policy = max(4 * shape.parameters, _TRAINED_BYTES * shape.parameters // divided_by)
        else:
            policy = (_TRAINED_BYTES + (number_bytes if half else 0)) * shape.parameters
        trained = max(trained, policy)
    resident = CONTEXT_BYTES + base + trained
    return LearnerNeeds(
        resident=resident, work=tokens * work_bytes_per_token(shape, number_bytes=number_bytes)
    )


def base_bytes(shape: ModelShape, *, number_bytes: int, quantized: Quantization = "") -> int:
    """Return what a model's weights need; tables of tokens are not quantized."""
    if not quantized:
        return shape.parameters * number_bytes
    tables = min(shape.table_parameters, shape.parameters)
    return tables * number_bytes + int((shape.parameters - tables) * BYTES_OF[quantized])


def teacher_bytes(shape: ModelShape, *, number_bytes: int, quantized: Quantization = "") -> int:
    """Return what a teacher with an adapter needs, which may be in another process than the first rank."""
    needs = learner_needs(
        shape, "lora", number_bytes=number_bytes, tokens=TEACHER_TOKENS, quantized=quantized
    )
    return needs.total


def work_bytes_per_token(shape: ModelShape, *, number_bytes: int) -> int:
    """Return what a token needs between the forward and the backward pass.

    Layers keep only their inputs, and one at a time runs again.
    """
    return shape.kept_bytes(number_bytes) + shape.layers * shape.hidden * number_bytes


def engine_needs(
    shape: ModelShape,
    *,
    number_bytes: int,
    tensor_parallel: int = 1,
    quantized: Quantization = "",
    policies: int = 0,
) -> EngineNeeds:
    """Return what an engine needs on each of its GPUs; heads of the cache are divided as far as they go.

    Args:
        shape: The model.
        number_bytes: Of the service's number format: 4 or 2.
        tensor_parallel: GPUs over which it is divided.
        quantized: The format of the linear layers' weights, if it is another.
        policies: What `policy_bytes` returns; 0 for vLLM, which takes it out of its share.
    """
    divided = min(tensor_parallel, shape.key_value_heads)
    weights = base_bytes(shape, number_bytes=number_bytes, quantized=quantized)
    return EngineNeeds(
        weights=CONTEXT_BYTES + -(-weights // tensor_parallel) + policies,
        cache=CACHE_TOKENS * shape.cached_numbers * number_bytes // divided,
    )


def policy_bytes(shape: ModelShape, method: Method, *, number_bytes: int, merged: int) -> int:
    """Return what the policies in a transformers engine need, besides the base model.

    Args:
        shape: The model.
        method: Adapters only, or one policy of all parameters besides.
        number_bytes: Of the service's number format: 4 or 2.
        merged: Adapters whose merged weights are kept.
    """
    # The factors of all adapters in a batch are kept a second time, side by side.
    factors = 2 * ADAPTERS * shape.adapter_parameters(ADAPTER_RANK)
    numbers = merged * shape.adapted_parameters + factors
    if method == "full":
        numbers = max(numbers, 2 * shape.parameters)  # The next version is complete before the last one goes.
    return numbers * number_bytes


def waiting_bytes(shape: ModelShape) -> int:
    """Return what a policy of all parameters that waits for vLLM on its GPU needs there, besides its share.

    In float32, and the next version is complete before the last one goes.
    """
    return 2 * 4 * shape.parameters


def divides_heads(shape: ModelShape | None, tensor_parallel: int) -> bool:
    """Whether an engine can divide the model over that many GPUs, as far as its shape is known."""
    if shape is None:
        return True
    keys = shape.key_value_heads
    return shape.heads % tensor_parallel == 0 and (keys % tensor_parallel == 0 or tensor_parallel % keys == 0)
