"""Preference training: compute both completions' logprobs, then a step that increases their margin.

A pair's gradient needs the logprobs of both whole completions, which may be in different micro-batches. So
they are computed first, and then each completion is run again with the weight that the loss gives it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from backend.jobs.dataset_loop import Update, WrittenDataJob
from backend.jobs.dataset_records import Record, batch_numbers, train_sequence
from backend.jobs.job_context import JobContext
from backend.jobs.reference import ReferenceLogprobs
from backend.learner.preference_loss import (
    ComparedAnswers,
    FloatArray,
    preference_loss,
    sums,
)
from backend.learner.sequences import BatchTotals
from backend.learner.spikes import LEAST_LOSS, SpikeWatch
from backend.learner.token_loss import likelihood_loss
from tinkergym.errors import NonFiniteLossError
from tinkergym.schema.jobs.dataset import PreferenceSpec

_MEASURED_AT_ONCE = 32
"""Pairs per part; a cancellation is checked between parts."""
_SUM = BatchTotals(tokens=1, sequences=1)
"""The weights of the tokens are the complete gradient, without a normalizer."""


class PreferenceJob(WrittenDataJob[PreferenceSpec]):
    """One preference job's loop."""

    def __init__(self, context: JobContext[PreferenceSpec]) -> None:
        super().__init__(context)
        self._reference: ReferenceLogprobs | None = None
        self._losses = SpikeWatch()

    def _prepare(self) -> None:
        context, spec = self._context, self._context.spec
        if not spec.loss.needs_reference:
            return
        self._reference = ReferenceLogprobs(context)
        trained = {
            number
            for step in range(1, spec.steps + 1)
            for number in batch_numbers(spec, len(self._data.train), step)
        }
        with context.clock.part("reference"):
            self._reference.compute("train", self._data.train, sorted(trained))
            self._reference.compute("evaluate", self._data.evaluate, range(len(self._data.evaluate)))

    def _learn(self, numbers: Sequence[int]) -> Update:
        context, spec = self._context, self._context.spec
        pairs = [self._data.train[number] for number in numbers]
        result = preference_loss(spec.loss, self._compare("train", pairs, numbers))
        if not math.isfinite(result.loss):
            raise NonFiniteLossError(
                f"the loss of policy {context.job_id} is {result.loss}: the model's logprobs are not finite",
                hint="the weights diverged: resume from an earlier checkpoint with a lower learning_rate",
            )
        weights = np.stack([result.chosen_weights, result.rejected_weights], axis=1)  # [pairs, 2]
        sequences = [
            train_sequence(answer, weight=float(weight))
            for pair, both in zip(pairs, weights, strict=True)
            for answer, weight in zip(pair, both, strict=True)
        ]
        passed = context.policy.forward_backward(sequences, likelihood_loss(), totals=_SUM)
        shared = {"shared_fraction": passed.metrics["shared_fraction"]}
        # The learner only sees a sum with the loss's gradient.
        spike = self._losses.observe(result.loss, name="loss_spike", least=LEAST_LOSS)
        return Update(loss=result.loss, metrics={**result.metrics, **shared, **spike})

    def _measure(self, records: Sequence[Record]) -> dict[str, float]:
        totals: dict[str, float] = {}
        for start in range(0, len(records), _MEASURED_AT_ONCE):
            self._context.control.check_within_step()
            numbers = range(start, min(start + _MEASURED_AT_ONCE, len(records)))
            pairs = [records[number] for number in numbers]
            result = preference_loss(self._context.spec.loss, self._compare("evaluate", pairs, numbers))
            for name, value in {"loss": result.loss, **result.metrics}.items():
                totals[name] = totals.get(name, 0.0) + value * len(pairs)
        return {f"eval/{name}": total / len(records) for name, total in totals.items()}

    def _compare(self, part: str, pairs: Sequence[Record], numbers: Sequence[int]) -> ComparedAnswers:
        context = self._context
        logprobs = context.policy.logprobs([train_sequence(answer) for pair in pairs for answer in pair])
        chosen, rejected = _both(sums(logprobs))
        tokens = np.asarray([len(values) for values in logprobs], dtype=np.int64)
        reference: tuple[FloatArray | None, FloatArray | None] = (None, None)
        if self._reference is not None:
            reference = self._reference.of(part, numbers)
        return ComparedAnswers(
            chosen=chosen,
            rejected=rejected,
            chosen_tokens=tokens[0::2],
            rejected_tokens=tokens[1::2],
            reference_chosen=reference[0],
            reference_rejected=reference[1],
        )


def _both(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    return values[0::2], values[1::2]
