"""The forward of a Llama-like decoder on a packed batch, without what transformers does around it.

A decoder's operations on a few dozen new tokens take some ten microseconds each; the calls of its modules,
their decorators and the masks that nobody uses take as long again. Here the same modules' own forwards follow
one another directly. Only models whose code was read for it are run so: what others do beyond some length, or
to large numbers only, a trial with a few tokens does not show. And only if it gives their very own bits then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backend.rollout.engines.packed_attention import packed_attention
from backend.rollout.engines.packed_batch import PackedBatch

_READ = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
"""Of transformers 5."""

_Forward = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class _Layer:
    """What a layer's modules compute; to look a module up takes longer than to call it."""

    norm_before_attention: _Forward
    to_query: _Forward
    to_key: _Forward
    to_value: _Forward
    query_norm: _Forward | None
    key_norm: _Forward | None
    attention: torch.nn.Module
    scale: float
    head_dim: int
    from_heads: _Forward
    norm_before_mlp: _Forward
    to_gate: _Forward
    to_inner: _Forward
    activation: _Forward
    from_inner: _Forward


class LeanDecoder:
    """A model of transformers, read as embedding, layers of attention and gated MLP, norm and head."""

    def __init__(self, model: Any) -> None:
        """Find the modules.

        Args:
            model: A causal LM whose attention is `packed_attention` and whose linear layers are taken over
                by the policy shelf already: both stay in use.

        Raises:
            ValueError: It is none of those that were read, or looks through a window.
        """
        kind, config = type(model), model.config
        if not kind.__module__.startswith("transformers.") or kind.__name__ not in _READ:
            raise ValueError(f"{kind.__name__} may compute more than a Llama does")
        windows = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
        if windows or getattr(config, "sliding_window", None) is not None:
            raise ValueError("it has a sliding window")
        decoder = model.model
        self._embed: _Forward = decoder.embed_tokens.forward
        self._rotary = decoder.rotary_emb
        self._layers = [_layer(module) for module in decoder.layers]
        self._norm: _Forward = decoder.norm.forward
        self._head: _Forward = model.lm_head.forward

    def logits(self, token_ids: Tensor, batch: PackedBatch, keep: Tensor) -> Tensor:
        """Run a packed batch; to be called in inference mode.

        Args:
            token_ids: [tokens].
            batch: Where they belong.
            keep: [wanted] indices of the tokens whose logits are needed.

        Returns:
            [wanted, vocabulary].
        """
        states = self._embed(token_ids)
        cos, sin = self._rotary.forward(states, batch.positions[None])
        # [tokens, 1, dim]: alike for all heads.
        cos, sin = cos[0, :, None], sin[0, :, None]
        half = sin.shape[-1] // 2
        # The first half of a head is turned by minus the second: the sign goes with the sine.
        sin = torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)
        for layer in self._layers:
            states += _attended(layer, layer.norm_before_attention(states), cos, sin, batch)
            inner = layer.norm_before_mlp(states)
            gate = layer.activation(layer.to_gate(inner))
            states += layer.from_inner(gate.mul_(layer.to_inner(inner)))
        return self._head(self._norm(states.index_select(0, keep)))


def _attended(layer: _Layer, states: Tensor, cos: Tensor, sin: Tensor, batch: PackedBatch) -> Tensor:
    heads = len(states), -1, layer.head_dim
    query, key = layer.to_query(states).view(heads), layer.to_key(states).view(heads)
    if layer.query_norm is not None and layer.key_norm is not None:
        query, key = layer.query_norm(query), layer.key_norm(key)
    query, key = _turned(query, cos, sin), _turned(key, cos, sin)
    value = layer.to_value(states).view(heads)
    mixed, _ = packed_attention(
        layer.attention,
        query.transpose(0, 1)[None],
        key.transpose(0, 1)[None],
        value.transpose(0, 1)[None],
        None,
        scaling=layer.scale,
        packed=batch,
    )
    return layer.from_heads(mixed.reshape(len(states), -1))


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to [tokens, heads, dim]."""
    swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
    return (heads * cos).add_(swapped.mul_(sin))


def _layer(module: Any) -> _Layer:
    attention, mlp = module.self_attn, module.mlp
    norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    query_norm, key_norm = (None if norm is None else norm.forward for norm in norms)
    return _Layer(
        norm_before_attention=module.input_layernorm.forward,
        to_query=attention.q_proj.forward,
        to_key=attention.k_proj.forward,
        to_value=attention.v_proj.forward,
        query_norm=query_norm,
        key_norm=key_norm,
        attention=attention,
        scale=attention.scaling,
        head_dim=attention.head_dim,
        from_heads=attention.o_proj.forward,
        norm_before_mlp=module.post_attention_layernorm.forward,
        to_gate=mlp.gate_proj.forward,
        to_inner=mlp.up_proj.forward,
        activation=mlp.act_fn.forward,
        from_inner=mlp.down_proj.forward,
    )
