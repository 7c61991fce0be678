"""Shards: which sequences of a train batch go to which rank. Numbers only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from backend.learner.sequences import TrainSequence


def shards(sequences: Sequence[TrainSequence], ranks: int) -> list[list[int]]:
    """Divide a batch into one part per rank, of about as many tokens each.

    Sequences that begin alike stay together, since a rank computes what they share once. A rank may get
    nothing. Sequences without a sampled token go nowhere, unless there are no others.

    Returns:
        [ranks] lists of indices into `sequences`; the same for the same batch.
    """
    if ranks < 1:
        raise ValueError(f"{ranks} ranks")
    chosen = [i for i, sequence in enumerate(sequences) if any(sequence.loss_mask)]
    if not chosen:
        return [list(range(len(sequences))), *([] for _ in range(ranks - 1))]
    chosen.sort(key=lambda i: tuple(sequences[i].token_ids))
    lengths = np.asarray([len(sequences[i].token_ids) for i in chosen], dtype=np.float64)
    # A sequence belongs where its middle falls when all stand in one line that is cut into equal pieces.
    middles = (np.cumsum(lengths) - lengths / 2) / lengths.sum()
    parts: list[list[int]] = [[] for _ in range(ranks)]
    for i, middle in zip(chosen, middles, strict=True):
        parts[min(int(middle * ranks), ranks - 1)].append(i)
    return parts
