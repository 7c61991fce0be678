"""The forward pass of a Llama-like decoder on a packed batch, without the overhead of transformers.

A decoder's operations on a few dozen new tokens take some ten microseconds each; module calls, decorators and
unused masks take as long again. The decoder is therefore written as one function of tensors, which on CPUs
runs without Python: see `backend.compute.compiled`.

Only models whose code was reviewed are run this way, because a trial with a few tokens does not show special
behaviour at long lengths or for large values. The results must also be bitwise identical.
"""

# Annotations must stay objects rather than strings: see `backend.compute.compiled`.
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from backend.compute.compiled import compiled
from backend.compute.fast_linears import product
from backend.compute.fast_norms import over_rms
from backend.engines.transformers.loaded_policies import AdapterSite, LoadedPolicies
from backend.engines.transformers.packed_attention import (
    attend_in_buckets,
    attention_undivided,
    bucket_masks,
    least_queries,
)
from backend.engines.transformers.packed_batch import Bucket, BucketShape, Indices, PackedBatch, buckets_in
from backend.engines.transformers.slot_cache import SlotCache

_READ = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
"""Class names in transformers 5."""
_STEADY_POSITIONS = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary position types that do not depend on the sequence's length."""


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


@dataclass(frozen=True, slots=True)
class _LinearModule:
    """Where to find a linear layer's tensors; asking the module takes ten times as long."""

    parameters: dict[str, Any]
    site: AdapterSite

    def now(self) -> Linear:
        """Return the layer with the bound policies."""
        mix, parameters = self.site.mix, self.parameters
        if mix is None:
            return Linear(parameters["weight"], parameters["bias"], None, None, None)
        return Linear(parameters["weight"], parameters["bias"], mix.down, mix.up, mix.foreign)


@dataclass(frozen=True, slots=True)
class _LayerModules:
    """Where to find a layer's tensors."""

    norms: tuple[dict[str, Any], dict[str, Any]]
    head_norms: tuple[dict[str, Any], dict[str, Any]] | None
    linears: tuple[_LinearModule, ...]
    """In the order of `Layer`."""
    key_heads: int

    def now(self, number: int, cache: SlotCache, dim: int) -> Layer:
        """Return the layer with the bound policies."""
        to_query, to_key, to_value, from_heads, to_gate, to_inner, from_inner = self.linears
        norms, head_norms = self.norms, self.head_norms
        keys, values = cache.layer(number, heads=self.key_heads, key_dim=dim, value_dim=dim)
        return Layer(
            norm_before_attention=norms[0]["weight"],
            to_query=to_query.now(),
            to_key=to_key.now(),
            to_value=to_value.now(),
            query_norm=None if head_norms is None else head_norms[0]["weight"],
            key_norm=None if head_norms is None else head_norms[1]["weight"],
            from_heads=from_heads.now(),
            norm_before_mlp=norms[1]["weight"],
            to_gate=to_gate.now(),
            to_inner=to_inner.now(),
            from_inner=from_inner.now(),
            keys=keys,
            values=values,
        )


class LeanDecoder:
    """A model from transformers, split into embedding, layers of attention and gated MLP, norm and head."""

    def __init__(self, model: Any, policies: LoadedPolicies, *, onednn: bool) -> None:
        """Find the modules.

        Args:
            model: A causal LM.
            policies: Binds policies to the model.
            onednn: Whether all its linear layers use oneDNN.

        Raises:
            ValueError: The model is not supported, has a sliding window, or computes differently.
        """
        kind, config = type(model), model.config
        if not kind.__module__.startswith("transformers.") or kind.__name__ not in _READ:
            raise ValueError(f"{kind.__name__} may compute more than a Llama model")
        windows = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
        if windows or getattr(config, "sliding_window", None) is not None:
            raise ValueError("it has a sliding window")
        decoder, rotary = model.model, model.model.rotary_emb
        if rotary.rope_type not in _STEADY_POSITIONS or config.hidden_act != "silu":
            raise ValueError(f"it has {rotary.rope_type} positions and {config.hidden_act} activations")
        first, device = decoder.layers[0], model.lm_head.weight.device
        self._numbers = Numbers(
            head_dim=first.self_attn.head_dim,
            scale=first.self_attn.scaling,
            epsilon=first.input_layernorm.variance_epsilon,
            rotary_scale=float(rotary.attention_scaling),
            onednn=onednn,
            least_queries=least_queries(device),
        )
        self._frequencies: Tensor = rotary.inv_freq
        self._embedding, self._norm = decoder.embed_tokens._parameters, decoder.norm._parameters
        self._layers = [_layer(module, policies, self._numbers.head_dim) for module in decoder.layers]
        self._head = _linear(model.lm_head, policies)
        self._room = _Room(device)
        self._run = compiled(_decoded) if device.type == "cpu" else _decoded

    def logits(self, token_ids: Indices, batch: PackedBatch, keep: Indices) -> Tensor:
        """Run a packed batch; call this in inference mode, with no adapters bound `one_by_one`.

        Args:
            token_ids: [tokens].
            batch: The tokens' sequences.
            keep: [wanted] indices of the tokens whose logits are needed.

        Returns:
            [wanted, vocabulary].
        """
        places = batch.places(self._layers[0].key_heads)
        parts = [token_ids, batch.positions, keep, places]
        counts = [*map(len, parts), sum(map(len, batch.bucket_numbers))]
        packed = self._room.filled([*parts, *batch.bucket_numbers])
        # Linear layers without oneDNN use MKL, which needs division.
        with attention_undivided() if self._numbers.onednn else nullcontext():
            return self._run(
                packed,
                counts,
                batch.shapes,
                self._embedding["weight"],
                self._frequencies,
                [
                    layer.now(number, batch.cache, self._numbers.head_dim)
                    for number, layer in enumerate(self._layers)
                ],
                self._norm["weight"],
                self._head.now(),
                self._numbers,
            )


class _Room:
    """Copies numpy results to torch in one tensor that is refilled each time.

    Each torch call releases the GIL, even one that only wraps an array: next to a busy thread that takes 70
    microseconds.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._make(1024)

    def filled(self, parts: Sequence[Indices]) -> Tensor:
        """Return the parts concatenated, possibly followed by other data; valid until the next call."""
        count = sum(map(len, parts))
        if count > len(self._view):
            self._make(2 * count)
        np.concatenate(parts, out=self._view[:count])
        return self._tensor if self._device.type == "cpu" else self._tensor[:count].to(self._device)

    def _make(self, count: int) -> None:
        self._tensor = torch.empty(count, dtype=torch.int64)
        self._view = self._tensor.numpy()


def _layer(module: Any, policies: LoadedPolicies, head_dim: int) -> _LayerModules:
    attention, mlp = module.self_attn, module.mlp
    linears = (
        *(attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj),
        *(mlp.gate_proj, mlp.up_proj, mlp.down_proj),
    )
    query_norm, key_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    return _LayerModules(
        norms=(module.input_layernorm._parameters, module.post_attention_layernorm._parameters),
        head_norms=(
            None if query_norm is None or key_norm is None else (query_norm._parameters, key_norm._parameters)
        ),
        linears=tuple(_linear(linear, policies) for linear in linears),
        key_heads=attention.k_proj.weight.shape[0] // head_dim,
    )


def _linear(module: Any, policies: LoadedPolicies) -> _LinearModule:
    return _LinearModule(module._parameters, policies.site_of(module))


# --- compiled on CPUs: functions of tensors, in the subset of Python that torch.jit supports ------------


def _decoded(  # noqa: PLR0917 - compiled, where it is called by position
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
    states = functional.embedding(token_ids, embedding)
    angles = positions[:, None].float() * frequencies.float()
    # the sign moves to the sine.
    cos = (angles.cos() * numbers.rotary_scale).to(states.dtype)
    sin = (angles.sin() * numbers.rotary_scale).to(states.dtype)
    cos, sin = torch.cat((cos, cos), dim=-1)[:, None], torch.cat((-sin, sin), dim=-1)[:, None]
    masks = bucket_masks(buckets, 0, states)
    for layer in layers:
        inner = _normed(states, layer.norm_before_attention, numbers.epsilon)
        states.add_(_attended(layer, inner, cos, sin, places, buckets, masks, numbers))
        inner = _normed(states, layer.norm_before_mlp, numbers.epsilon)
        gate = functional.silu(_through(layer.to_gate, inner, numbers.onednn))
        inner = gate.mul_(_through(layer.to_inner, inner, numbers.onednn))
        states.add_(_through(layer.from_inner, inner, numbers.onednn))
    wanted = _normed(states.index_select(0, keep), norm, numbers.epsilon)
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
    query = _through(layer.to_query, states, numbers.onednn).view(tokens, -1, dim)
    key = _through(layer.to_key, states, numbers.onednn).view(tokens, -1, dim)
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
        narrow = (states @ down).masked_fill_(foreign, 0.0)
        outputs.addmm_(narrow, up)
    return outputs
