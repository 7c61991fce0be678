"""Shards: which sequences of a training batch go to which rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from backend.learner.sequences import TrainSequence


def shards(sequences: Sequence[TrainSequence], ranks: int) -> list[list[int]]:
    """Divide a batch into one part per rank, with about equal numbers of tokens.

    Sequences with a common beginning stay together, because a rank computes the common part once. A rank may
    get nothing. Sequences without a sampled token are left out, unless there are no others.

    Returns:
        [ranks] lists of indices into `sequences`; reproducible for a given batch.
    """
    if ranks < 1:
        raise ValueError(f"{ranks} ranks")
    chosen = [i for i, sequence in enumerate(sequences) if any(sequence.loss_mask)]
    if not chosen:
        return [list(range(len(sequences))), *([] for _ in range(ranks - 1))]
    chosen.sort(key=lambda i: tuple(sequences[i].token_ids))
    lengths = np.asarray([len(sequences[i].token_ids) for i in chosen], dtype=np.float64)
    # All sequences are laid end to end and cut into equal pieces; a sequence belongs to the piece with its
    # middle.
    middles = (np.cumsum(lengths) - lengths / 2) / lengths.sum()
    parts: list[list[int]] = [[] for _ in range(ranks)]
    for i, middle in zip(chosen, middles, strict=True):
        parts[min(int(middle * ranks), ranks - 1)].append(i)
    return parts
