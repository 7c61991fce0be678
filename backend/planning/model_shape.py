"""The dimensions of a model, read from its `config.json` without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_LONGEST_CONTEXT = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder."""

    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    context_length: int
    tied: bool = False
    """Whether the output head is the table of tokens."""
    experts: int = 0
    """Experts of each layer's mixture; 0 for a dense model. `intermediate` is then one expert's."""
    experts_per_token: int = 0
    norms_heads: bool = False
    """Whether queries and keys pass a norm."""
    stored_parameters: int = 0
    """Elements of the weights files, if they were seen; else they follow from the dimensions."""

    @classmethod
    def of(cls, config: Mapping[str, Any], *, stored_parameters: int = 0) -> ModelShape | None:
        """Return the dimensions in the contents of a `config.json`; None if it does not name them.

        Args:
            config: With a `text_config`, that one counts.
            stored_parameters: Elements of the weights files, if known.
        """
        text = config.get("text_config")
        text = text if isinstance(text, Mapping) else config
        hidden, layers = _first(text, "hidden_size", "n_embd"), _first(text, "num_hidden_layers", "n_layer")
        heads, vocabulary = _first(text, "num_attention_heads", "n_head"), _first(text, "vocab_size")
        if not (hidden and layers and heads and vocabulary):
            return None
        experts = _first(text, "num_experts", "num_local_experts", "n_routed_experts")
        inner = _first(text, "intermediate_size", "n_inner") or 4 * hidden
        return cls(
            hidden=hidden,
            layers=layers,
            heads=heads,
            key_value_heads=_first(text, "num_key_value_heads") or heads,
            head_size=_first(text, "head_dim") or hidden // heads,
            intermediate=(_first(text, "moe_intermediate_size") or inner) if experts else inner,
            vocabulary=vocabulary,
            context_length=_first(text, "max_position_embeddings", "n_positions") or _LONGEST_CONTEXT,
            tied=bool(text.get("tie_word_embeddings", False)),
            experts=experts,
            experts_per_token=_first(text, "num_experts_per_tok") if experts else 0,
            norms_heads=str(text.get("model_type", "")).startswith(("qwen3", "gemma3", "olmo2")),
            stored_parameters=stored_parameters,
        )

    @property
    def parameters(self) -> int:
        """Elements of all weights."""
        if self.stored_parameters:
            return self.stored_parameters
        expert = 3 * self.hidden * self.intermediate  # gate, up and down
        router = self.hidden * self.experts
        layer = self._attention + expert * max(self.experts, 1) + router + 2 * self.hidden  # two norms
        return self.layers * layer + self.table_parameters + self.hidden

    @property
    def table_parameters(self) -> int:
        """Elements of the table of tokens and of the output head."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def adapted_parameters(self) -> int:
        """Elements of the linear layers that adapters change; experts are not among them."""
        return self.layers * (self._attention + (0 if self.experts else 3 * self.hidden * self.intermediate))

    def adapter_parameters(self, rank: int) -> int:
        """Return the elements of an adapter of this rank on all linear layers; experts have none."""
        query, key = self.heads * self.head_size, self.key_value_heads * self.head_size
        ends = 2 * (self.hidden + query) + 2 * (self.hidden + key)
        ends += 0 if self.experts else 3 * (self.hidden + self.intermediate)
        return rank * self.layers * ends

    def kept_bytes(self, number_bytes: int) -> int:
        """Return what a layer keeps of a token for the backward pass, in bytes.

        Inputs and outputs of its matrices and activations, and in half precision the inputs of its norms a
        second time, in float32. The factors are fitted to what the learner measures on a CPU.
        """
        query, key = self.heads * self.head_size, self.key_value_heads * self.head_size
        wide = self.intermediate * max(self.experts_per_token, 1)
        normed = query + key if self.norms_heads else 0
        numbers = 5 * self.hidden + 4 * query + 3 * key + 3 * wide + normed
        return number_bytes * numbers + (4 * (2 * self.hidden + normed) if number_bytes < 4 else 0)

    @property
    def cached_numbers(self) -> int:
        """Numbers of a token in the cache of an engine."""
        return 2 * self.layers * self.key_value_heads * self.head_size

    @property
    def _attention(self) -> int:
        query, key = self.heads * self.head_size, self.key_value_heads * self.head_size
        return 2 * self.hidden * query + 2 * self.hidden * key  # query and output; key and value


def _first(config: Mapping[str, Any], *names: str) -> int:
    """Return the first of these entries that is a positive number; 0 if none is."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0
