"""Weights that are used but not trained: initial policies and teachers."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from backend.learner.sequences import FloatArray, TrainSequence
from backend.policies.pool_learner import AnyLearner


class FrozenPolicy:
    """A policy in a learner, or the learner's base model."""

    def __init__(self, learner: AnyLearner, policy_id: str | None, *, shared: bool) -> None:
        """Use `policy_id` of `learner`; None is its base model; `shared`: others use the learner too."""
        self._learner: AnyLearner | None = learner
        self._policy_id, self._shared = policy_id, shared

    def logprobs(self, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """Return the logprobs of the sampled tokens, per sequence in input order."""
        assert self._learner is not None, "it was closed"
        return self._learner.logprobs(self._policy_id, sequences)

    def close(self) -> None:
        """Free the memory."""
        learner, self._learner = self._learner, None
        if learner is None:
            return
        if not self._shared:
            # transformers' modules have reference cycles, which hold a model's memory until then.
            del learner
            gc.collect()
        elif self._policy_id is not None:
            learner.drop(self._policy_id)
