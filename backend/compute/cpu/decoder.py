"""The forward pass of a Llama-like decoder on a packed batch, as one function of tensors.

It can be compiled: see `compiled`. `backend.engines.transformers.lean_decoder` finds the tensors in a model.
"""

# Annotations must stay objects rather than strings: see `compiled`.
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from backend.compute.cpu.bucket_attention import (
    Bucket,
    BucketShape,
    attend_in_buckets,
    bucket_masks,
    buckets_in,
)
from backend.compute.cpu.fast_linears import product
from backend.compute.cpu.fast_norms import over_rms


class Linear(NamedTuple):
    """A linear layer and the combined adapters added to it: see `loaded_policies.Mix`."""

    weight: Tensor
    bias: Tensor | None
    down: Tensor | None
    up: Tensor | None
    foreign: Tensor | None


class Layer(NamedTuple):
    """A layer's weights and its part of the cache."""

    norm_before_attention: Tensor
    to_query: Linear
    to_key: Linear
    to_value: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    from_heads: Linear
    norm_before_mlp: Tensor
    to_gate: Linear
    to_inner: Linear
    from_inner: Linear
    keys: Tensor
    values: Tensor


class Numbers(NamedTuple):
    """Values shared by all layers and batches."""

    head_dim: int
    scale: float
    """Factor on the attention scores."""
    epsilon: float
    """Epsilon of the norms."""
    rotary_scale: float
    onednn: bool
    """Whether linear layers use oneDNN."""
    least_queries: int


def decoded(  # noqa: PLR0917 - compiled, where it is called by position
    packed: Tensor,
    counts: list[int],
    shapes: list[BucketShape],
    embedding: Tensor,
    frequencies: Tensor,
    layers: list[Layer],
    norm: Tensor,
    head: Linear,
    numbers: Numbers,
) -> Tensor:
    """Return [wanted, vocabulary].

    `packed` is the concatenation of token ids, positions, which tokens' logits are wanted, places in the
    cache, and the numbers of the buckets; `counts` has the length of each.
    """
    token_ids, positions, keep, places, in_buckets = torch.split_with_sizes(packed[: sum(counts)], counts)
    buckets = buckets_in(in_buckets, shapes)
    states = functional.embedding(token_ids, embedding)  # [tokens, hidden]
    angles = positions[:, None].float() * frequencies.float()  # [tokens, dim / 2]
    # [tokens, 1, dim], the same for all heads. The first half of a head is rotated by minus the second: the
    # sign moves to the sine.
    cos = (angles.cos() * numbers.rotary_scale).to(states.dtype)
    sin = (angles.sin() * numbers.rotary_scale).to(states.dtype)
    cos, sin = torch.cat((cos, cos), dim=-1)[:, None], torch.cat((-sin, sin), dim=-1)[:, None]
    masks = bucket_masks(buckets, 0, states)
    for layer in layers:
        inner = _normed(states, layer.norm_before_attention, numbers.epsilon)
        # In place, here and below: inference needs no earlier states.
        states.add_(_attended(layer, inner, cos, sin, places, buckets, masks, numbers))
        inner = _normed(states, layer.norm_before_mlp, numbers.epsilon)
        gate = functional.silu(_through(layer.to_gate, inner, numbers.onednn))  # [tokens, inner]
        inner = gate.mul_(_through(layer.to_inner, inner, numbers.onednn))
        states.add_(_through(layer.from_inner, inner, numbers.onednn))
    wanted = _normed(states.index_select(0, keep), norm, numbers.epsilon)  # [wanted, hidden]
    return _through(head, wanted, numbers.onednn)


def _attended(  # noqa: PLR0917
    layer: Layer,
    states: Tensor,
    cos: Tensor,
    sin: Tensor,
    places: Tensor,
    buckets: list[Bucket],
    masks: list[Tensor],
    numbers: Numbers,
) -> Tensor:
    """Return [tokens, hidden], a layer's attention output for [tokens, hidden]."""
    tokens, dim = states.shape[0], numbers.head_dim
    query = _through(layer.to_query, states, numbers.onednn).view(tokens, -1, dim)  # [tokens, heads, dim]
    key = _through(layer.to_key, states, numbers.onednn).view(tokens, -1, dim)  # [tokens, kv heads, dim]
    query_norm, key_norm = layer.query_norm, layer.key_norm
    if query_norm is not None and key_norm is not None:
        query, key = (
            _normed(query, query_norm, numbers.epsilon),
            _normed(key, key_norm, numbers.epsilon),
        )
    found = attend_in_buckets(
        _turned(query, cos, sin),
        _turned(key, cos, sin),
        _through(layer.to_value, states, numbers.onednn).view(tokens, -1, dim),
        layer.keys,
        layer.values,
        places,
        buckets,
        masks,
        numbers.scale,
        numbers.least_queries,
    )
    return _through(layer.from_heads, found.reshape(tokens, -1), numbers.onednn)


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to [tokens, heads, dim]."""
    swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
    return (heads * cos).add_(swapped.mul_(sin))


def _normed(states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return the RMS norm of [..., dim], rounded like transformers and `fast_norms`."""
    if states.dtype == torch.float32:
        return over_rms(states, epsilon)[0].mul_(weight)
    wide = states.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return weight * wide.to(states.dtype)


def _through(layer: Linear, states: Tensor, onednn: bool) -> Tensor:
    """Return [..., out], the output of a linear layer and its adapters for [..., in]."""
    outputs = product(states, layer.weight, layer.bias, onednn)
    down, up, foreign = layer.down, layer.up, layer.foreign
    if down is not None and up is not None and foreign is not None:
        narrow = (states @ down).masked_fill_(foreign, 0.0)  # [tokens, ranks of all adapters]
        outputs.addmm_(narrow, up)
    return outputs
