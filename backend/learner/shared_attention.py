"""Attention over shared prefixes: the decoder sees each node once, attention sees whole sequences.

Everything in a decoder except attention treats each token separately. The nodes of a micro-batch therefore
run through it as one row, and only here they are expanded to sequences, attended causally, and folded back.
Registered with transformers as an attention implementation, so it works for every model whose attention can
be chosen.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from backend.compute.cpu.attention import attend
from backend.learner.batching import MicroBatch

ATTENTION = "tinkergym_shared_prefix"
_OPTIONS_NOT_COMPUTED = ("softcap", "s_aux", "position_bias", "head_mask")

# Per thread, as several workers run micro-batches with different layouts through one model.
_now = threading.local()


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """The nodes' positions in the sequences, as tensors on the model's device. Names as in `MicroBatch`."""

    blocks: tuple[tuple[int, int], ...]
    node_of: torch.Tensor
    """[Q]"""
    first_place: torch.Tensor
    """[N]"""
    places: torch.Tensor
    """[real places], sorted by each one's node."""
    place_starts: torch.Tensor
    """[N], where each node's run in `places` begins."""

    @classmethod
    def of(cls, batch: MicroBatch, device: torch.device) -> AttentionLayout:
        """Convert a micro-batch's arrays to tensors."""
        places = np.flatnonzero(batch.is_real)
        nodes = batch.node_of[places]
        places = places[np.argsort(nodes, kind="stable")]
        starts = np.searchsorted(np.sort(nodes), np.arange(len(batch.token_ids)))
        return cls(
            batch.blocks,
            *(torch.from_numpy(a).to(device) for a in (batch.node_of, batch.first_place, places, starts)),
        )


def layout_in_use() -> AttentionLayout | None:
    """Return the layout of this thread's forward passes."""
    layout: AttentionLayout | None = getattr(_now, "layout", None)
    return layout


@contextmanager
def attending(layout: AttentionLayout | None) -> Iterator[None]:
    """Use `layout` in this thread's forward passes; None is ordinary causal attention."""
    _now.layout = layout
    try:
        yield
    finally:
        _now.layout = None


class _LayOutQueries(torch.autograd.Function):
    """Map [N, D] nodes to [Q, D] places.

    Only the first of each node's places is read afterwards, so only that one sends a gradient.
    """

    @staticmethod
    def forward(ctx: Any, nodes: torch.Tensor, layout: AttentionLayout) -> torch.Tensor:
        ctx.layout = layout
        return nodes.index_select(0, layout.node_of)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0].index_select(0, ctx.layout.first_place), None  # [N, D]


class _LayOutKeys(torch.autograd.Function):
    """Map [N, D] nodes to [Q, D] places.

    A node receives the sum of its places' gradients, added in a fixed order.
    """

    @staticmethod
    def forward(ctx: Any, nodes: torch.Tensor, layout: AttentionLayout) -> torch.Tensor:
        ctx.layout = layout
        return nodes.index_select(0, layout.node_of)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        layout = ctx.layout
        # An embedding bag is torch's fastest ordered segment sum on a CPU.
        return F.embedding_bag(
            layout.places, gradients[0].contiguous(), layout.place_starts, mode="sum"
        ), None


class _FoldBack(torch.autograd.Function):
    """Map [Q, D] places to [N, D] nodes: each node's first place."""

    @staticmethod
    def forward(ctx: Any, places: torch.Tensor, layout: AttentionLayout) -> torch.Tensor:
        ctx.layout = layout
        return places.index_select(0, layout.first_place)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        layout = ctx.layout
        full = gradients[0].new_zeros(len(layout.node_of), gradients[0].shape[1])
        return full.index_copy_(0, layout.first_place, gradients[0]), None  # [Q, D]


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
    """Compute attention as transformers' interface requires: [1, heads, N, d] in, [1, N, heads, d] out.

    Raises:
        NotImplementedError: The model needs more than scaled causal softmax attention, and ignoring it would
            be silently wrong.
    """
    if any(kwargs.get(option) is not None for option in _OPTIONS_NOT_COMPUTED):
        raise NotImplementedError(f"one of the attention options {_OPTIONS_NOT_COMPUTED}")
    layout = layout_in_use()
    if layout is None:
        attended: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return attended
    heads, nodes = query.shape[1], query.shape[2]

    def laid_out(states: torch.Tensor, lay_out: type[torch.autograd.Function]) -> list[torch.Tensor]:
        flat = states[0].transpose(0, 1).reshape(nodes, -1)  # [N, heads * d]
        spread: torch.Tensor = lay_out.apply(flat, layout)  # type: ignore[no-untyped-call]  # [Q, heads * d]
        parts = torch.split(spread, [rows * columns for rows, columns in layout.blocks])
        # Each [rows, heads, columns, d].
        return [
            part.view(rows, columns, states.shape[1], -1).transpose(1, 2)
            for part, (rows, columns) in zip(parts, layout.blocks, strict=True)
        ]

    outs = []
    for queries, keys, values in zip(
        laid_out(query, _LayOutQueries), laid_out(key, _LayOutKeys), laid_out(value, _LayOutKeys), strict=True
    ):
        # Padding needs no mask: it is on the right, where causal attention never looks.
        out = attend(queries, keys, values, scale=scaling, mask=None)
        outs.append(out.transpose(1, 2).reshape(out.shape[0] * out.shape[2], -1))  # [places, heads * d]
    folded: torch.Tensor = _FoldBack.apply(torch.cat(outs) if len(outs) > 1 else outs[0], layout)  # type: ignore[no-untyped-call]
    return folded.view(1, nodes, heads, -1), None


AttentionInterface.register(ATTENTION, shared_prefix_attention)
