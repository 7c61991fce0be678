"""What passes of a learner and its optimizer steps return: plain records, without tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backend.learner.sequences import FloatArray

_OF_WEIGHTS = "importance_"
"""Prefix of metrics of importance weights: a token whose loss is not computed has none, rather than 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBackwardResult:
    """Results of a batch under the weights before the next optimizer step."""

    loss: float
    learner_logprobs: list[FloatArray]
    """Per sequence, in input order: one per sampled token, in nats at the sequence's temperature."""
    metrics: dict[str, float]
    """ratio_mean, ratio_max, logprob_gap_max, logprob_gap_mean (learner against sampling), sampled_entropy,
    shared_fraction (the share of input tokens that need not be computed); and the loss's metrics:
    clip_fraction, kl, importance_weight_max, ..."""
    judged_tokens: int
    """Sampled tokens of the sequences whose loss was computed, which for most losses need an advantage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPart:
    """Results of a part of a batch."""

    tokens: int
    """Number of sampled tokens."""
    judged_tokens: int
    """See `ForwardBackwardResult`."""
    metrics: dict[str, float]

    def tokens_behind(self, metric: str) -> int:
        """Return the number of tokens in a metric's mean."""
        return self.judged_tokens if metric.startswith(_OF_WEIGHTS) else self.tokens


def metrics_over_parts(parts: Sequence[BatchPart]) -> dict[str, float]:
    """Combine the metrics of a batch's parts: the maximum of `..._max` and spikes, else token means.

    A part in which no token was trained on lacks the loss's metrics; it adds 0 to the means, as such tokens
    do in a whole batch, and nothing to those of importance weights.
    """
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for part in parts for name in part.metrics):
        if name.endswith(("_max", "_spike")):
            found[name] = max(part.metrics[name] for part in parts if name in part.metrics)
        else:
            counts = [part.tokens_behind(name) for part in parts]
            total = sum(n * part.metrics.get(name, 0.0) for n, part in zip(counts, parts, strict=True))
            found[name] = total / max(1, sum(counts))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimStepResult:
    """The result of an optimizer step."""

    grad_norm: float
    """L2 over all parameters except a value head's, before clipping."""
    learning_rate: float
    optimizer_step: int
    """1 after the first; skipped steps do not count."""
    skipped: bool
    """Whether the gradient was exactly zero, so weights and moments were left unchanged."""
    metrics: dict[str, float]
    """Metrics: grad_norm, learning_rate, with a value head value_grad_norm, and grad_norm_spike if there is a
    spike."""
