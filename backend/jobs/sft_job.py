"""Supervised fine-tuning: the mean cross-entropy of the trained tokens, step by step."""

from __future__ import annotations

from collections.abc import Sequence

from backend.jobs.dataset_loop import Update, WrittenDataJob
from backend.jobs.dataset_records import Record, train_sequence
from backend.learner.token_loss import likelihood_loss
from tinkergym.schema.jobs.dataset import SFTSpec

_PASSED_ON = ("shared_fraction", "loss_spike")
"""Metrics of the learner that are reported unchanged."""
_MEASURED_AT_ONCE = 64
"""Records per part; a cancellation is checked between parts."""


class SFTJob(WrittenDataJob[SFTSpec]):
    """One SFT job's loop."""

    def _learn(self, numbers: Sequence[int]) -> Update:
        context = self._context
        sequences = [train_sequence(self._data.train[number][0]) for number in numbers]
        loss = likelihood_loss(context.spec.aggregation)
        result = context.policy.forward_backward(sequences, loss)
        # Sums of logprobs per token, whatever the aggregation: the usual loss of a language model.
        return Update(
            loss=result.loss,
            metrics={
                "nll_per_token": result.metrics["sampled_entropy"],
                **{name: result.metrics[name] for name in _PASSED_ON if name in result.metrics},
            },
        )

    def _measure(self, records: Sequence[Record]) -> dict[str, float]:
        context = self._context
        total, tokens = 0.0, 0
        for start in range(0, len(records), _MEASURED_AT_ONCE):
            context.control.check_within_step()
            part = [train_sequence(record[0]) for record in records[start : start + _MEASURED_AT_ONCE]]
            for logprobs in context.policy.logprobs(part):
                total -= float(logprobs.sum(dtype="float64"))
                tokens += len(logprobs)
        return {"eval/loss": total / tokens}
