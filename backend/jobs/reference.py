"""Logprobs of a preference job's reference: computed once, and stored next to the checkpoints.

The reference is the policy that the job began with. The pairs are computed in parts of a fixed size and
order, so that a resumed job finds the same bits whether it reads them or computes them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from zipfile import BadZipFile

import numpy as np

from backend.jobs.dataset_records import Record, train_sequence
from backend.jobs.job_context import JobContext
from backend.learner.preference_loss import FloatArray, sums
from backend.policies.trained_policy import FrozenPolicy
from backend.store.blobs import BlobMissingError
from tinkergym.schema.jobs.dataset import PreferenceSpec

_AT_ONCE = 32
"""Pairs per part; a cancellation is checked between parts."""


class ReferenceLogprobs:
    """Sums over the tokens of each completion, in nats, by part of the data and number of the pair."""

    def __init__(self, context: JobContext[PreferenceSpec]) -> None:
        self._context = context
        self._known: dict[str, dict[int, tuple[float, float]]] = {}

    def compute(self, part: str, pairs: Sequence[Record], numbers: Sequence[int]) -> None:
        """Compute the pairs with these numbers, or read the results of an earlier attempt."""
        if not numbers:
            return
        files, key = self._context.files, f"reference-{part}.npz"
        # A damaged file raises more kinds of errors than numpy documents; it is only a cache.
        with (
            suppress(BlobMissingError, OSError, ValueError, KeyError, EOFError, BadZipFile),
            np.load(BytesIO(files.get(key))) as stored,
        ):
            if stored["numbers"].tolist() == list(numbers):
                self._known[part] = dict(zip(numbers, map(tuple, stored["logprobs"].tolist()), strict=True))
                return
        with self._context.policy.beginning() as begun_with:
            found = [
                self._part(begun_with, [pairs[number] for number in numbers[start : start + _AT_ONCE]])
                for start in range(0, len(numbers), _AT_ONCE)
            ]
        logprobs = np.concatenate(found)
        self._known[part] = dict(zip(numbers, map(tuple, logprobs.tolist()), strict=True))
        # Nothing depends on this file: a missing or damaged one is computed again.
        written = BytesIO()
        np.savez(written, numbers=np.asarray(numbers), logprobs=logprobs)
        files.put(key, written.getvalue())

    def of(self, part: str, numbers: Sequence[int]) -> tuple[FloatArray, FloatArray]:
        """Return the sums for these pairs: of the chosen completions, and of the rejected ones."""
        both = np.asarray([self._known[part][number] for number in numbers], dtype=np.float64)
        return both[:, 0], both[:, 1]

    def _part(self, begun_with: FrozenPolicy, pairs: Sequence[Record]) -> FloatArray:
        """Return [pairs, 2]."""
        self._context.control.check()
        sequences = [train_sequence(answer) for pair in pairs for answer in pair]
        return sums(begun_with.logprobs(sequences)).reshape(-1, 2)
