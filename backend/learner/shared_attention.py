"""Attention over shared prefixes: the decoder sees each node once, attention sees whole sequences.

Everything in a decoder but attention treats each token by itself. So the nodes of a micro-batch run through
it as one row, and only here they are laid out as sequences, attended causally, and folded back. Registered
with transformers as an attention implementation, so it works for every model that lets its attention be
chosen.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from backend.learner.batching import MicroBatch

ATTENTION = "tinkergym_shared_prefix"

_now = threading.local()


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """Where the nodes stand in the sequences, as tensors on the model's device. Names as in `MicroBatch`."""

    rows: int
    longest: int
    node_of: torch.Tensor
    """[R * L]"""
    first_place: torch.Tensor
    """[N]"""
    places: torch.Tensor
    """[sum of lengths], the real places, sorted by the node at each."""
    place_starts: torch.Tensor
    """[N], where each node's run in `places` begins."""

    @classmethod
    def of(cls, batch: MicroBatch, device: torch.device) -> AttentionLayout:
        """Turn a micro-batch's arrays into tensors."""
        rows, longest = batch.shape
        real = torch.arange(longest)[None, :] < torch.from_numpy(batch.lengths)[:, None]
        places = torch.nonzero(real.reshape(-1)).squeeze(1)
        nodes = torch.from_numpy(batch.node_of).reshape(-1)[places]
        nodes, order = torch.sort(nodes, stable=True)
        starts = torch.searchsorted(nodes, torch.arange(len(batch.token_ids)))
        return cls(
            rows,
            longest,
            torch.from_numpy(batch.node_of).reshape(-1).to(device),
            torch.from_numpy(batch.first_place).to(device),
            places[order].to(device),
            starts.to(device),
        )


@contextmanager
def attending(layout: AttentionLayout | None) -> Iterator[None]:
    """Use `layout` in this thread's forward passes; None is ordinary causal attention."""
    _now.layout = layout
    try:
        yield
    finally:
        _now.layout = None


class _LayOutQueries(torch.autograd.Function):
    """[N, D] nodes to [R * L, D] places.

    Of each node's places only the first is read afterwards, so only that one sends a gradient.
    """

    @staticmethod
    def forward(ctx: Any, nodes: torch.Tensor, layout: AttentionLayout) -> torch.Tensor:
        ctx.layout = layout
        return nodes.index_select(0, layout.node_of)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0].index_select(0, ctx.layout.first_place), None


class _LayOutKeys(torch.autograd.Function):
    """[N, D] nodes to [R * L, D] places.

    A node receives the sum of its places' gradients, added in a fixed order.
    """

    @staticmethod
    def forward(ctx: Any, nodes: torch.Tensor, layout: AttentionLayout) -> torch.Tensor:
        ctx.layout = layout
        return nodes.index_select(0, layout.node_of)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        layout = ctx.layout
        # An embedding bag is the fastest ordered segment sum that torch has on a CPU.
        return F.embedding_bag(
            layout.places, gradients[0].contiguous(), layout.place_starts, mode="sum"
        ), None


class _FoldBack(torch.autograd.Function):
    """[R * L, D] places to [N, D] nodes: each node's first place."""

    @staticmethod
    def forward(ctx: Any, places: torch.Tensor, layout: AttentionLayout) -> torch.Tensor:
        ctx.layout = layout
        return places.index_select(0, layout.first_place)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        layout = ctx.layout
        full = gradients[0].new_zeros(layout.rows * layout.longest, gradients[0].shape[1])
        return full.index_copy_(0, layout.first_place, gradients[0]), None


def shared_prefix_attention(  # noqa: PLR0917 - transformers calls it so
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as transformers' attention interface asks: [1, heads, N, d] in, [1, N, heads, d] out."""
    layout: AttentionLayout | None = getattr(_now, "layout", None)
    if layout is None:
        attended: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return attended
    rows, longest = layout.rows, layout.longest
    heads, head_dim = query.shape[1], query.shape[3]

    def sequences(nodes: torch.Tensor, lay_out: type[torch.autograd.Function]) -> torch.Tensor:
        flat = nodes[0].transpose(0, 1).reshape(nodes.shape[2], -1)
        spread: torch.Tensor = lay_out.apply(flat, layout)  # type: ignore[no-untyped-call]
        return spread.view(rows, longest, nodes.shape[1], -1).transpose(1, 2)

    queries = sequences(query, _LayOutQueries)
    keys, values = sequences(key, _LayOutKeys), sequences(value, _LayOutKeys)
    if keys.shape[1] != heads:
        keys = keys.repeat_interleave(heads // keys.shape[1], dim=1)
        values = values.repeat_interleave(heads // values.shape[1], dim=1)
    out = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=scaling)
    flat_out = out.transpose(1, 2).reshape(rows * longest, -1)
    nodes: torch.Tensor = _FoldBack.apply(flat_out, layout)  # type: ignore[no-untyped-call]
    return nodes.view(1, -1, heads, head_dim if values.shape[-1] == head_dim else values.shape[-1]), None


AttentionInterface.register(ATTENTION, shared_prefix_attention)
