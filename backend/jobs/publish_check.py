"""Whether engine and learner meant the same policy after each publish of a loop that its owner writes.

The owner mostly hands the new version's own completions in, with the engine's logprobs: then the update
computes the learner's anyway, and comparing costs nothing. Where it does not, or where the two differ - the
completions may be of an older version, or the logprobs of a cut distribution - the engine is asked for a few
tokens before the policy changes, and these decide.
"""

from __future__ import annotations

from collections.abc import Sequence

from backend.jobs.job_context import JobContext
from backend.learner.sequences import FloatArray, TrainSequence
from backend.policies.parity import Prompt, parity, prompt_of
from tinkergym.errors import ParityError
from tinkergym.schema.policy_calls import PolicySpec

_PROMPTS = 2
"""That are answered: each publish of some loops pays for them."""


class PublishCheck:
    """Compares each published version once, as long as the learner has its weights."""

    def __init__(self, context: JobContext[PolicySpec]) -> None:
        """Compare the policy of a job."""
        self._context = context
        self._version: int | None = None
        """The newest published one, until it was compared or the policy has changed."""
        self._prompts: list[Prompt] = []
        """Of the newest batch."""

    def published(self, version: int) -> None:
        """Take that the engine got the policy as it is now."""
        self._version = version

    def learned(
        self, sequences: Sequence[TrainSequence], learner_logprobs: Sequence[FloatArray], *, sampled: bool
    ) -> None:
        """Take a batch and what the learner says of it, before it changes the policy.

        Args:
            sequences: As they were handed in.
            learner_logprobs: Of the tokens that are trained on.
            sampled: Whether the owner handed in logprobs of an engine.
        """
        self._prompts = [
            prompt_of(one.token_ids, one.loss_mask) for one in sequences[:_PROMPTS] if any(one.loss_mask)
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
        """Compare now, if that has not happened: the policy is about to change, or nobody will ask it soon.

        Raises:
            ParityError: Engine and learner differ.
            ServiceUnavailableError: The engine did not answer.
        """
        if self._version is not None and self._prompts:
            context = self._context
            context.policy.probed_parity(
                self._version, self._prompts, temperature=1.0, allowed=context.parity_threshold
            )
            self._done()

    def changed(self) -> None:
        """Take that the learner has other weights than the engine from now on."""
        self._version = None

    def _done(self) -> None:
        self._version = None
        self._context.store.add_facts(self._context.lease, self._context.policy.witness.take())


def _masked(one: TrainSequence) -> TrainSequence:
    """Return a sequence with logprobs on the trained tokens only: owners may know them of more."""
    logprobs = [
        p if trained else None for p, trained in zip(one.sampling_logprobs, one.loss_mask, strict=True)
    ]
    return TrainSequence(
        token_ids=one.token_ids,
        loss_mask=one.loss_mask,
        sampling_logprobs=logprobs,
        temperature=one.temperature,
    )
