"""Aggregations: how the losses of the sampled tokens are combined.

Each is a weight per token, normalised over the whole training batch. The gradient therefore does not depend
on how the batch is cut into micro-batches, calls or ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from backend.learner.sequences import BatchTotals, FloatArray
from tinkergym.errors import InvalidRequestError

Aggregation = Literal["token", "sequence", "constant"]


def token_weights(
    counts: npt.NDArray[np.int64],
    aggregation: Aggregation,
    *,
    totals: BatchTotals,
    constant_tokens: int,
    weights: Sequence[float] | None = None,
) -> FloatArray:
    """Return the weight of each sampled token's loss.

    Args:
        counts: [number of sequences], the number of sampled tokens.
        aggregation: `token`: the mean over all tokens of the batch (DAPO, arXiv:2503.14476), which gives long
            sequences more weight. `sequence`: the mean over sequences of their token means (GRPO,
            arXiv:2402.03300). `constant`: the sum over `constant_tokens` per sequence (Dr. GRPO,
            arXiv:2503.20783), which gives all tokens the same weight regardless of lengths.
        totals: Totals of the whole batch, of which `counts` may be a part.
        constant_tokens: Only used by `constant`.
        weights: A factor per sequence; None is 1 for each.

    Returns:
        [sum of counts] float32, in input order. An empty batch gives an empty array.
    """
    match aggregation:
        case "token":
            per_sequence = np.full(len(counts), 1.0 / max(totals.tokens, 1))
        case "sequence":
            per_sequence = 1.0 / (max(totals.sequences, 1) * np.maximum(counts, 1))
        case "constant":
            if constant_tokens < 1:
                raise InvalidRequestError(
                    f"aggregation='constant' divides by constant_tokens, which must not be {constant_tokens}",
                    hint="set it to the maximum number of tokens per completion",
                    field="constant_tokens",
                )
            per_sequence = np.full(len(counts), 1.0 / (max(totals.sequences, 1) * constant_tokens))
    if weights is not None:
        per_sequence = per_sequence * np.asarray(weights, dtype=np.float64)
    return np.repeat(per_sequence, counts).astype(np.float32)
