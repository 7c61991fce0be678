"""The forward pass of a Llama-like decoder on a packed batch, without the overhead of transformers.

A decoder's operations on a few dozen new tokens take some ten microseconds each; module calls, decorators and
unused masks take as long again. The decoder is therefore one function of tensors (`compute/cpu/decoder.py`),
which on CPUs runs without Python. Here its tensors are found in a model.

Only models whose code was reviewed are run this way, because a trial with a few tokens does not show special
behaviour at long lengths or for large values. The results must also be bitwise identical.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backend.compute.cpu.bucket_attention import least_queries
from backend.compute.cpu.compiled import compiled
from backend.compute.cpu.decoder import Layer, Linear, Numbers, decoded
from backend.engines.transformers.adapter_site import AdapterSite
from backend.engines.transformers.loaded_policies import LoadedPolicies
from backend.engines.transformers.packed_attention import attention_undivided
from backend.engines.transformers.packed_batch import Indices, PackedBatch
from backend.engines.transformers.slot_cache import SlotCache

_READ = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
"""Class names in transformers 5."""
_STEADY_POSITIONS = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary position types that do not depend on the sequence's length."""


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
        self._frequencies: Tensor = rotary.inv_freq  # [head dim / 2]
        self._embedding, self._norm = decoder.embed_tokens._parameters, decoder.norm._parameters
        self._layers = [_layer(module, policies, self._numbers.head_dim) for module in decoder.layers]
        self._head = _linear(model.lm_head, policies)
        self._room = _Room(device)
        self._run = compiled(decoded) if device.type == "cpu" else decoded

    def logits(self, token_ids: Indices, batch: PackedBatch, keep: Indices) -> Tensor:
        """Run a packed batch; call this in inference mode, with no adapters bound `one_by_one`.

        Args:
            token_ids: [tokens].
            batch: The tokens' sequences.
            keep: [wanted] indices of the tokens whose logits are needed.

        Returns:
            [wanted, vocabulary].
        """
        places = batch.places(self._layers[0].key_heads)  # [tokens * key heads]
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
