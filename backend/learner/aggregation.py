"""Aggregations: how the losses of the sampled tokens become one number.

Each is a weight per token, whose normaliser is that of the whole train batch. So the gradient does not depend
on how the batch is cut into micro-batches, calls or ranks.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from backend.learner.sequences import BatchTotals, FloatArray
from tinkergym.errors import InvalidRequestError

Aggregation = Literal["token", "sequence", "constant"]


def token_weights(
    counts: npt.NDArray[np.int64], aggregation: Aggregation, *, totals: BatchTotals, constant_tokens: int
) -> FloatArray:
    """Return the factor in front of each sampled token's loss.

    Args:
        counts: [number of sequences], sampled tokens of each.
        aggregation: `token`: the mean over all tokens of the batch (DAPO, arXiv:2503.14476), so that long
            sequences weigh more. `sequence`: the mean over sequences of their token means (GRPO,
            arXiv:2402.03300). `constant`: the sum over `constant_tokens` per sequence (Dr. GRPO,
            arXiv:2503.20783), so that a token weighs the same whatever the lengths are.
        totals: Of the whole batch, of which `counts` may be a part.
        constant_tokens: Read by `constant` only.

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
                    f"aggregation='constant' divides by constant_tokens, which is {constant_tokens}",
                    hint="set it to the most tokens that an answer may have",
                    field="constant_tokens",
                )
            per_sequence = np.full(len(counts), 1.0 / (max(totals.sequences, 1) * constant_tokens))
    return np.repeat(per_sequence, counts).astype(np.float32)
