"""Micro-batches: which tokens go through the model together, and what is read from its output.

The unit is not a sequence but a *node*: a token with everything before it. Sequences with a common beginning
(a group's prompt, the same first moves) share nodes, and each node is computed once. Numpy only; no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from backend.compute.cpu.attention import filled_keys
from backend.learner.image_numbers import ImageNumbers
from backend.learner.sequences import TrainSequence
from tinkergym.trajectory.content_parts import ImageSpan

IntArray = npt.NDArray[np.int64]

Rope = Callable[[Sequence[ImageSpan], int], IntArray]
"""Given the images of a sequence and the number of its wanted tokens, returns [3, tokens]."""

_ATTENTION_FACTOR = 4
"""Attention uses padded rows, which are cheap compared with the rest: the number of places per node."""

_BLOCK_ROWS = 4
_BLOCK_FILL = 0.8
"""A row shorter than this fraction of its rectangle's width starts a new one, unless that has very few
rows."""


_SHARING_LOST = 1.1
"""Micro-batches for several workers may have this many times as many nodes as whole ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Some sequences of a training batch. N nodes, Q places, U predictions, P sampled tokens."""

    token_ids: IntArray
    """[N]"""
    positions: IntArray
    """[N], counting from 0 in each sequence."""
    blocks: tuple[tuple[int, int], ...]
    """Rows and columns of the rectangles in which attention sees the sequences, Q places in total. A sequence
    that is the beginning of another one needs no row."""
    node_of: IntArray
    """[Q], the node at each place; padding, on the right, repeats node 0."""
    is_real: npt.NDArray[np.bool_]
    """[Q], False at padding."""
    first_place: IntArray
    """[N], the first place of each node."""
    input_tokens: int
    """The number of input tokens without sharing."""
    predictions: IntArray
    """[U], the distinct nodes whose logits are needed."""
    temperatures: npt.NDArray[np.float32]
    """[U], the divisor of each prediction's logits."""
    prediction_of: IntArray
    """[P], ascending: the prediction from which each token was sampled."""
    targets: IntArray
    """[P], the sampled token."""
    slots: IntArray
    """[P], the token's index among all sampled tokens of the training batch, see `SampledTokens`."""
    images: tuple[tuple[str, int], ...] = ()
    """The hashes of the images in it, without repetitions, and the number of tokens of each."""
    image_nodes: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """[I], the nodes that are image tokens."""
    image_rows: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """[I], which part each is, where the parts of all `images` stand one behind the other."""
    rope: IntArray | None = None
    """[3, N], positions for the rotary embedding of a model with positions inside images; None if all three
    equal `positions`."""


def micro_batches(
    sequences: Sequence[TrainSequence],
    *,
    max_tokens: int,
    share_prefixes: bool,
    only: npt.NDArray[np.bool_] | None = None,
    workers: int = 1,
    rope: Rope | None = None,
) -> list[list[MicroBatch]]:
    """Cut a training batch into micro-batches, in a reproducible order; returns what is computed at a time.

    The micro-batches of a turn, at most `workers`, have at most `max_tokens` tokens in total and about equal
    sizes, so they finish together. If such small micro-batches would share much less, each turn is a single
    micro-batch.

    A sequence's last sampled token and everything after it predict nothing that is learned, and are left out.
    A sequence longer than `max_tokens` gets a separate micro-batch.

    Args:
        sequences: The whole training batch; sequences without sampled tokens are skipped.
        max_tokens: Limit for the nodes of a turn with `share_prefixes`, else for its rows times its longest
            row.
        share_prefixes: Group sequences with a common beginning and share their nodes; otherwise sort by
            length, to reduce padding.
        only: [number of sequences], which of them to include; None includes all.
        workers: How many threads compute at a time; without `share_prefixes` only one.
        rope: Computes three-dimensional positions of a sequence with images.
    """
    rows = _rows(sequences, only, rope)
    if not rows:
        return []
    if share_prefixes:
        # Big-endian bytes are ordered as the ids are, so sequences with a common beginning become neighbours.
        rows.sort(key=lambda row: row.ids.astype(">u4").tobytes())
        shared = [0, *(_common_prefix(a.ids, b.ids) for a, b in pairwise(rows))]
    else:
        rows.sort(key=lambda row: -len(row.ids))
        shared = [0] * len(rows)
    whole = _cut(rows, shared, max_tokens, share_prefixes=share_prefixes)
    if share_prefixes and workers > 1:
        parts = _cut(rows, shared, max_tokens // workers, share_prefixes=True, workers=workers)
        sizes = [part.nodes for part in parts]
        if max(sizes) <= max_tokens // workers and sum(sizes) <= _SHARING_LOST * sum(p.nodes for p in whole):
            batches = [_assemble(part.of(rows), part.of(shared), one_block=False) for part in parts]
            return [batches[start : start + workers] for start in range(0, len(batches), workers)]
    return [[_assemble(part.of(rows), part.of(shared), one_block=not share_prefixes)] for part in whole]


@dataclass(frozen=True, slots=True)
class _Part:
    """Neighbouring rows that form a micro-batch."""

    start: int
    stop: int
    nodes: int

    def of(self, items: list[Any]) -> list[Any]:
        return items[self.start : self.stop]


def _cut(
    rows: list[_Row], shared: list[int], max_tokens: int, *, share_prefixes: bool, workers: int = 1
) -> list[_Part]:
    """Cut rows into micro-batches; for several workers into equal ones, a multiple of the workers."""
    parts: list[_Part] = []
    start, nodes, longest = 0, 0, 0
    left = sum(len(row.ids) for row in rows) - sum(shared)
    wanted = -(-left // max(max_tokens * workers, 1)) * workers if workers > 1 else 0
    for index, row in enumerate(rows):
        new = len(row.ids) - (shared[index] if index > start else 0)
        wide = max(longest, len(row.ids))
        padded = (index - start + 1) * wide
        full = (
            nodes + new > max_tokens or padded > _ATTENTION_FACTOR * max_tokens
            if share_prefixes
            else padded > max_tokens
        )
        # Half of the row may exceed an equal share of the rest.
        fair = wanted > len(parts) + 1 and 2 * nodes + new > 2 * left / (wanted - len(parts))
        if (full or fair) and index > start:
            # The new part computes again what this row shares with the one before it.
            left += shared[index] - nodes
            parts.append(_Part(start, index, nodes))
            start, nodes, new, wide = index, 0, len(row.ids), len(row.ids)
        nodes, longest = nodes + new, wide
    return [*parts, _Part(start, len(rows), nodes)]


@dataclass(frozen=True, slots=True)
class _Row:
    ids: IntArray
    """The input: everything before the last sampled token."""
    targets_at: IntArray
    """Positions of the sampled tokens in the sequence; each is predicted from the position before it."""
    targets: IntArray
    first_slot: int
    temperature: float
    numbers: ImageNumbers
    """Of the whole train batch."""
    rope: IntArray | None
    """[3, length], if the model uses such positions and there are images."""


def _rows(
    sequences: Sequence[TrainSequence], only: npt.NDArray[np.bool_] | None, rope: Rope | None
) -> list[_Row]:
    rows, slot = [], 0
    numbers = ImageNumbers()
    for number, sequence in enumerate(sequences):
        targets_at = np.flatnonzero(np.asarray(sequence.loss_mask, dtype=bool))
        if len(targets_at) and (only is None or only[number]):
            ids = np.array(sequence.token_ids, dtype=np.int64)
            targets, temperature = ids[targets_at], float(sequence.temperature)
            numbers.put_into(ids, sequence.images)
            end = int(targets_at[-1])
            places = rope(sequence.images, end) if rope and sequence.images else None
            rows.append(_Row(ids[:end], targets_at, targets, slot, temperature, numbers, places))
        # Slots number the tokens of the whole batch, also of what `only` leaves out.
        slot += len(targets_at)
    return rows


def _common_prefix(left: IntArray, right: IntArray) -> int:
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    return int(differs.argmax()) if differs.any() else length


def _assemble(rows: list[_Row], shared: list[int], *, one_block: bool) -> MicroBatch:
    nodes_of_row: list[IntArray] = []
    token_ids, positions, ropes = [], [], []
    nodes = 0
    for index, row in enumerate(rows):
        length, common = len(row.ids), shared[index] if index else 0
        new = np.arange(nodes, nodes + length - common)
        nodes_of_row.append(np.concatenate([nodes_of_row[-1][:common], new]) if index else new)
        token_ids.append(row.ids[common:])
        positions.append(np.arange(common, length))
        ropes.append(None if row.rope is None else row.rope[:, common:])
        nodes += length - common

    # In this order a sequence is directly followed by its extensions.
    extended = [len(row.ids) == common for row, common in zip(rows, [*shared[1:], -1], strict=True)]
    laid_out = [row for row, inside in zip(nodes_of_row, extended, strict=True) if not inside]
    blocks, node_of, is_real = _blocks(laid_out, one_block=one_block)
    places = np.flatnonzero(is_real)
    first_place = np.zeros(nodes, dtype=np.int64)
    # Backwards: of several writes to one node the last one stays, which is the lowest place.
    first_place[node_of[places[::-1]]] = places[::-1]  # [N]

    from_nodes = np.concatenate([nodes_of_row[i][row.targets_at - 1] for i, row in enumerate(rows)])
    temperatures = np.concatenate(
        [np.full(len(row.targets), row.temperature, dtype=np.float32) for row in rows]
    )
    # Several sequences may sample from the same node: one row of logits serves them all.
    # One array for `np.unique`: node numbers and float32 temperatures are both exact in float64.
    keys = np.stack([from_nodes.astype(np.float64), temperatures.astype(np.float64)])
    distinct, prediction_of = np.unique(keys, axis=1, return_inverse=True)  # [2, U], [P]
    prediction_of = prediction_of.reshape(-1)
    order = np.argsort(prediction_of, kind="stable")
    slots = np.concatenate([row.first_slot + np.arange(len(row.targets)) for row in rows])
    ids = np.concatenate(token_ids)
    images, image_nodes, image_rows = rows[0].numbers.taken_out_of(ids)
    return MicroBatch(
        token_ids=ids,
        positions=np.concatenate(positions),
        blocks=blocks,
        node_of=node_of,
        is_real=is_real,
        first_place=first_place,
        input_tokens=sum(len(row.ids) for row in rows),
        predictions=distinct[0].astype(np.int64),
        temperatures=distinct[1].astype(np.float32),
        prediction_of=prediction_of[order].astype(np.int64),
        targets=np.concatenate([row.targets for row in rows])[order],
        slots=slots[order],
        images=images,
        image_nodes=image_nodes,
        image_rows=image_rows,
        rope=_whole_rope(ropes, positions),
    )


def _whole_rope(ropes: Sequence[IntArray | None], positions: Sequence[IntArray]) -> IntArray | None:
    if all(rope is None for rope in ropes):
        return None
    parts = [
        np.tile(plain, (3, 1)) if rope is None else rope for rope, plain in zip(ropes, positions, strict=True)
    ]
    return np.concatenate(parts, axis=1)


def _blocks(
    rows: list[IntArray], *, one_block: bool
) -> tuple[tuple[tuple[int, int], ...], IntArray, npt.NDArray[np.bool_]]:
    """Arrange rows of similar length in rectangles, the longest first."""
    rows = sorted(rows, key=len, reverse=True)
    blocks, node_of, is_real = [], [], []
    start = 0
    for end in range(1, len(rows) + 1):
        wide = len(rows[start])
        if end < len(rows) and (
            one_block or end - start < _BLOCK_ROWS or len(rows[end]) > _BLOCK_FILL * wide
        ):
            continue
        if not one_block:  # one block runs through the whole decoder, several only through its attention
            wide = filled_keys(wide)
        nodes = np.zeros((end - start, wide), dtype=np.int64)
        real = np.zeros((end - start, wide), dtype=bool)
        for index, row in enumerate(rows[start:end]):
            nodes[index, : len(row)] = row
            real[index, : len(row)] = True
        blocks.append((end - start, wide))
        node_of.append(nodes.reshape(-1))
        is_real.append(real.reshape(-1))
        start = end
    return tuple(blocks), np.concatenate(node_of), np.concatenate(is_real)
