"""The results of ranks' parts, combined into those of the whole call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backend.learner.pass_results import BatchPart, ForwardBackwardResult, OptimStepResult, metrics_over_parts
from backend.learner.sequences import FloatArray
from tinkergym.errors import TinkerGymError


def in_order(parts: list[list[int]], found: list[list[FloatArray]], count: int) -> list[FloatArray]:
    """Return the arrays of the ranks' parts in the batch's order; empty ones for sequences in no part."""
    ordered = [np.zeros(0, dtype=np.float32)] * count
    for part, arrays in zip(parts, found, strict=True):
        for index, array in zip(part, arrays, strict=True):
            ordered[index] = array
    return ordered


def merged(parts: list[list[int]], found: list[ForwardBackwardResult], counts: Any) -> ForwardBackwardResult:
    """Combine the ranks' results: losses add up, and metrics are those of the whole batch."""
    metrics = metrics_over_parts(
        [
            BatchPart(
                tokens=int(counts[part].sum()), judged_tokens=result.judged_tokens, metrics=result.metrics
            )
            for part, result in zip(parts, found, strict=True)
        ]
    )
    return ForwardBackwardResult(
        loss=sum(result.loss for result in found),
        learner_logprobs=in_order(parts, [result.learner_logprobs for result in found], len(counts)),
        metrics=metrics,
        judged_tokens=sum(result.judged_tokens for result in found),
    )


def same_step(found: Sequence[OptimStepResult | TinkerGymError]) -> OptimStepResult:
    """Return the step that all ranks took.

    Raises:
        TinkerGymError: The error with which all of them refused.
        RuntimeError: They no longer agree.
    """
    steps = [each for each in found if isinstance(each, OptimStepResult)]
    errors = [each for each in found if isinstance(each, TinkerGymError)]
    if not steps:
        raise errors[0]
    if errors:
        raise RuntimeError(f"a rank refused a gradient ({errors[0]}) that another applied")
    # Exactly equal, as equal copies get equal sums: a difference would grow unseen.
    if len({step.grad_norm for step in steps}) > 1:
        raise RuntimeError(f"the summed gradients have different norms: {[s.grad_norm for s in steps]}")
    return steps[0]
