"""Runs a computation over a batch, micro-batch by micro-batch, under a policy's weights or the base model's.

Invariant: results are added in the order of the micro-batches, however many workers computed them, so that
sums are bitwise the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from backend.learner.batching import MicroBatch
from backend.learner.device_turns import DeviceTurns
from backend.learner.loaded_model import LoadedModel
from backend.learner.policy_weights import Policy
from backend.learner.sequences import TrainSequence
from backend.learner.worker_threads import WorkerThreads

_MOST_TRAINED = 10**8
"""Largest policy that several workers train; larger gradients are stored only once."""


class Pass(Protocol):
    """A computation over a batch, micro-batch by micro-batch."""

    def run(self, batch: MicroBatch, *, gradient: bool) -> Any:
        """Compute a micro-batch; several threads may do so at a time."""
        ...

    def add(self, found: Any) -> None:
        """Add what `run` returned, in the order of the micro-batches."""
        ...


class PassRunner:
    """Runs passes of all policies on one base model. Thread-safe."""

    def __init__(self, base: LoadedModel, turns: DeviceTurns, workers: WorkerThreads) -> None:
        """Prepare, for workers that compute micro-batches at the same time."""
        self._base, self._turns, self._workers = base, turns, workers

    def workers_for(self, policy: Policy) -> int:
        """Return how many workers train a policy: each has a separate gradient."""
        few = trained_numbers(policy) <= _MOST_TRAINED and policy.lm.can_run_in_parallel
        return self._workers.count if few else 1

    def run(
        self,
        policy: Policy | None,
        sequences: Sequence[TrainSequence],
        work: Pass,
        *,
        only: npt.NDArray[np.bool_] | None = None,
        gradient: bool = False,
    ) -> None:
        """Run a pass; others may compute in between.

        Args:
            policy: Whose weights compute; None means the base model.
            sequences: The batch, or the part of it for this learner.
            work: The pass.
            only: [sequences] which of them to run; None means all.
            gradient: Whether gradients are computed.
        """
        lm = policy.lm if policy else self._base.lm
        most = self._base.batching.tokens
        workers = self.workers_for(policy) if policy else self._workers.count
        with self._turns.working():
            batches = lm.batches(sequences, max_tokens=most, only=only, workers=workers)
        if policy and batches:
            # An adapter is merged into a copy of the base model's weights.
            with self._turns.own_tensors(self._base.parameters):
                policy.prepare()
        try:
            # Other ranks, with parts of the same weights, may have more micro-batches than this one, and can
            # compute theirs only if it takes part.
            turns = policy.turns(len(batches)) if policy else len(batches)
            for together in batches:
                self._encode_images(policy, together)
                with self._turns.together(together) as cores, self._using(policy):
                    for found in self._workers.run(partial(work.run, gradient=gradient), together, cores):
                        work.add(found)
            for _ in range(turns - len(batches)):
                assert policy is not None
                with self._turns.whole():
                    policy.idle(gradient=gradient)
        finally:
            if policy:
                policy.release()

    def _encode_images(self, policy: Policy | None, batches: Sequence[MicroBatch]) -> None:
        """Compute the features of micro-batches' images with all threads, before each worker uses its own."""
        hashes = list(dict.fromkeys(sha256 for batch in batches for sha256, _ in batch.images))
        if hashes:
            with self._turns.whole(), self._using(policy):
                (policy.lm if policy else self._base.lm).encode_images(hashes)

    @contextmanager
    def _using(self, policy: Policy | None) -> Iterator[None]:
        """Load the weights of a policy, or the base model's, into its model."""
        if policy is not None:
            with policy.using():
                yield
        else:
            with self._base.adapters.using(None), self._base.lm.tower_at_rest(True):
                yield


def trained_numbers(policy: Policy) -> int:
    """Return the number of a policy's trained parameters."""
    return sum(parameter.numel() for parameter in policy.parameters.values())
