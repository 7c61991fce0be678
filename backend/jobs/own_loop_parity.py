"""Check after each publish of a user's own loop that engine and learner use the same policy.

The loop usually submits the new version's completions with the engine's logprobs: the update computes the
learner's anyway, so the comparison is free. Without them, or if the two differ (the completions may be of an
older version, or the logprobs of a truncated distribution), the engine samples a few tokens before the policy
changes, and these decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from backend.jobs.job_context import JobContext
from backend.learner.sequences import FloatArray, TrainSequence
from backend.policies.parity import Prompt, parity, prompt_of
from tinkergym.errors import ParityError
from tinkergym.schema.jobs.own_loop import PolicySpec

_PROMPTS = 2
"""Number of sampled requests, which each publish may cost."""


class PublishCheck:
    """Compares the newest published version at the next batch, while the learner has its weights."""

    def __init__(self, context: JobContext[PolicySpec]) -> None:
        """Compare the policy of a job."""
        self._context = context
        self._version: int | None = None
        """The newest published version, until it is compared or the policy changes."""
        self._prompts: list[Prompt] = []
        """From the newest batch, for a probe."""

    def published(self, version: int) -> None:
        """Record that the engine received the current policy."""
        self._version = version

    def learned(
        self, sequences: Sequence[TrainSequence], learner_logprobs: Sequence[FloatArray], *, sampled: bool
    ) -> None:
        """Check a batch and the learner's logprobs for it, before it changes the policy.

        Args:
            sequences: The submitted sequences.
            learner_logprobs: Logprobs of the training tokens.
            sampled: Whether the loop submitted logprobs from an engine.
        """
        self._prompts = [
            prompt_of(one.token_ids, one.loss_mask, one.images)
            for one in sequences[:_PROMPTS]
            if any(one.loss_mask)
        ]
        if self._version is None or not sampled or not any(map(len, learner_logprobs)):
            return
        context, allowed = self._context, self._context.parity_threshold
        masked = [_masked(one) for one in sequences]
        try:
            metrics = parity(allowed, masked, list(learner_logprobs))
        except ParityError:
            return  # of an older version, or of another distribution: a probe decides
        context.policy.note_agreement(self._version, metrics, masked, learner_logprobs, allowed=allowed)
        self._done()

    def changes(self) -> None:
        """Compare now, if not done yet: the policy is about to change or to be idle.

        Raises:
            ParityError: Engine and learner differ.
            ServiceUnavailableError: The engine did not respond.
        """
        if self._version is not None and self._prompts:
            context = self._context
            context.policy.probed_parity(
                self._version, self._prompts, temperature=1.0, allowed=context.parity_threshold
            )
            self._done()

    def changed(self) -> None:
        """Record that the learner's weights differ from the engine's from now on."""
        self._version = None

    def _done(self) -> None:
        self._version = None
        self._context.store.add_facts(self._context.lease, self._context.policy.take_facts())


def _masked(one: TrainSequence) -> TrainSequence:
    """Return a sequence with logprobs on the training tokens only; loops may have more."""
    logprobs = [
        p if trained else None for p, trained in zip(one.sampling_logprobs, one.loss_mask, strict=True)
    ]
    return replace(one, sampling_logprobs=logprobs)
