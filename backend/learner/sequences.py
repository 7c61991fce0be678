"""What the learner is given: token ids, which of them the policy sampled, and how good that was.

Plain frozen records, no tensors. Text, environments and rewards are unknown here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tinkergym.errors import InvalidRequestError, UnsupportedPartError
from tinkergym.schema.views import ImageRules
from tinkergym.trajectory.parts import ImageSpan, misplaced_image
from tinkergym.trajectory.trajectory import Segment

FloatArray = npt.NDArray[np.float32]


_PER_SAMPLED_TOKEN = ("proximal_logprobs", "reference_logprobs", "value_targets", "old_values")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSequence:
    """One run of tokens to learn from; all lists have one length T."""

    token_ids: Sequence[int]
    loss_mask: Sequence[bool]
    """True on the sampled tokens that are learned from; never on the first token, which nothing predicts."""
    sampling_logprobs: Sequence[float | None]
    """Of the policy that sampled, in nats at `temperature`; read only where `loss_mask` is True."""
    advantage: float | Sequence[float] = 0.0
    """One for the whole sequence, or one per token (T of them; read only where `loss_mask` is True)."""
    temperature: float = 1.0
    """At which the tokens were sampled; the learner's logits are divided by it."""
    proximal_logprobs: Sequence[float] | FloatArray | None = None
    """One per token with `loss_mask` True: of the policy at the step's first update. Wanted by losses with an
    importance correction, in later updates only."""
    reference_logprobs: Sequence[float] | FloatArray | None = None
    """One per token with `loss_mask` True: of the policy that a KL penalty holds on to."""
    value_targets: Sequence[float] | FloatArray | None = None
    """One per token with `loss_mask` True: what the value head is to expect before it, in units of return."""
    old_values: Sequence[float] | FloatArray | None = None
    """One per token with `loss_mask` True: what it expected at the step's first update."""
    images: Sequence[ImageSpan] = ()
    """Where images stand, in order; on tokens that are not learned from."""

    def __post_init__(self) -> None:
        length = len(self.token_ids)
        if not length == len(self.loss_mask) == len(self.sampling_logprobs):
            raise InvalidRequestError(
                f"token_ids has {length}, loss_mask {len(self.loss_mask)} and sampling_logprobs "
                f"{len(self.sampling_logprobs)} entries",
                hint="give one entry per token in each",
                field="sampling_logprobs",
            )
        if length and self.loss_mask[0]:
            raise InvalidRequestError(
                "the first token is marked as sampled, but nothing stands before it that could predict it",
                hint="start a sequence with its prompt",
                field="loss_mask",
            )
        if not isinstance(self.advantage, int | float) and len(self.advantage) != length:
            raise InvalidRequestError(
                f"{len(self.advantage)} advantages for {length} tokens",
                hint="give one number, or one per token",
                field="advantage",
            )
        for field in _PER_SAMPLED_TOKEN:
            values = getattr(self, field)
            if values is not None and len(values) != (sampled := sum(map(bool, self.loss_mask))):
                raise InvalidRequestError(
                    f"{len(values)} {field} for {sampled} tokens with loss_mask True",
                    hint="give one per such token, in order",
                    field=field,
                )
        if self.images and (wrong := misplaced_image(self.images, self.loss_mask)):
            raise InvalidRequestError(wrong, hint="render the sequence again", field="images")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise InvalidRequestError(
                f"temperature {self.temperature} has no logprobs",
                hint="train on tokens that were sampled at a temperature above 0",
                field="temperature",
            )

    @classmethod
    def from_segment(
        cls, segment: Segment, *, advantage: float | Sequence[float], temperature: float = 1.0
    ) -> TrainSequence:
        """Take a trajectory's segment as it is."""
        return cls(
            token_ids=segment.token_ids,
            loss_mask=segment.loss_mask,
            sampling_logprobs=segment.sampling_logprobs,
            advantage=advantage,
            temperature=temperature,
            images=segment.images,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTotals:
    """How much a whole train batch holds; what the aggregation divides by.

    A batch that is handed over in several calls gives each call the totals of all, so that the gradients add
    up to the gradient of the whole.
    """

    tokens: int
    """Tokens with `loss_mask` True."""
    sequences: int
    """Sequences with at least one such token."""

    @classmethod
    def of(cls, sequences: Sequence[TrainSequence]) -> BatchTotals:
        """Count."""
        sampled = [sum(map(bool, sequence.loss_mask)) for sequence in sequences]
        return cls(tokens=sum(sampled), sequences=sum(count > 0 for count in sampled))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """The sampled tokens of a batch, one after the other in input order: P of them."""

    counts: npt.NDArray[np.int64]
    """Sampled tokens per sequence, [number of sequences]."""
    sampling_logprobs: FloatArray
    advantages: FloatArray
    proximal_logprobs: FloatArray | None = None
    reference_logprobs: FloatArray | None = None
    value_targets: FloatArray | None = None
    old_values: FloatArray | None = None
    """These four are None unless every sequence has them."""

    @classmethod
    def of(cls, sequences: Sequence[TrainSequence]) -> SampledTokens:
        """Flatten.

        Raises:
            InvalidRequestError: A sampled token has no finite sampling logprob or no finite advantage, or
                some sequences have optional numbers that others have not.
        """
        counts, logprobs, advantages = [], [], []
        for number, sequence in enumerate(sequences):
            places = np.flatnonzero(np.asarray(sequence.loss_mask, dtype=bool))
            counts.append(len(places))
            # None becomes NaN, and is refused below if it stands on a sampled token.
            logprobs.append(np.asarray(sequence.sampling_logprobs, dtype=np.float64)[places])
            advantage = np.asarray(sequence.advantage, dtype=np.float64)
            advantages.append(advantage[places] if advantage.ndim else np.full(len(places), advantage))
            if not np.isfinite(logprobs[-1]).all():
                raise InvalidRequestError(
                    f"sequence {number} has a sampled token without a finite sampling logprob",
                    hint="every token with loss_mask True needs the logprob it was sampled with",
                    field="sampling_logprobs",
                )
            if not np.isfinite(advantages[-1]).all():
                raise InvalidRequestError(
                    f"sequence {number} has an advantage that is no finite number",
                    hint="leave failed episodes out of the batch",
                    field="advantage",
                )
        return cls(
            counts=np.asarray(counts, dtype=np.int64),
            sampling_logprobs=_joined(logprobs),
            advantages=_joined(advantages),
            **{field: _optional(sequences, field) for field in _PER_SAMPLED_TOKEN},
        )

    @property
    def sequence_of(self) -> npt.NDArray[np.int64]:
        """[P], the number of each token's sequence."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def split(self, values: FloatArray) -> list[FloatArray]:
        """Cut an array over all sampled tokens into one per sequence, in input order."""
        if not len(self.counts):
            return []
        return [part.copy() for part in np.split(values, np.cumsum(self.counts)[:-1])]


def _joined(parts: list[npt.NDArray[np.float64]]) -> FloatArray:
    return np.concatenate([np.zeros(0), *parts]).astype(np.float32)


def _optional(sequences: Sequence[TrainSequence], field: str) -> FloatArray | None:
    parts = [getattr(sequence, field) for sequence in sequences]
    missing = [number for number, part in enumerate(parts) if part is None]
    if len(missing) == len(parts):
        return None
    if missing:
        raise InvalidRequestError(
            f"sequence {missing[0]} has no {field}, but others of the batch have",
            hint="give them to every sequence, or to none",
            field=field,
        )
    joined = _joined([np.asarray(part, dtype=np.float64) for part in parts])
    if not np.isfinite(joined).all():
        raise InvalidRequestError(f"{field} holds a number that is not finite", field=field)
    return joined


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLimits:
    """What a model can compute."""

    vocabulary: int
    """Token ids are smaller than this."""
    context_length: int | None
    """Most tokens of a sequence; None if the model does not say."""
    images: ImageRules | None = None
    """How images stand in a sequence; None if the model takes text only."""


def image_fault(images: Sequence[ImageSpan], token_ids: Sequence[int], limits: TokenLimits) -> str:
    """Return what is wrong with a record's images for this model, in words; empty if nothing is."""
    rules = limits.images
    if rules is None:
        return "it has a part of the kind 'image', and the model takes text" if images else ""
    for number, image in enumerate(images):
        if rules.tokens and image.end - image.start != rules.tokens:
            return f"image {number} has {image.end - image.start} tokens, and the model's have {rules.tokens}"
        if set(token_ids[image.start : image.end]) != {rules.placeholder}:
            return f"image {number} stands where the tokens are no placeholders"
    return ""


def left_out_image(
    images: Sequence[ImageSpan], token_ids: Sequence[int], loss_mask: Sequence[bool], limits: TokenLimits
) -> str:
    """Return which placeholder has no image, in words; those that the policy sampled need none."""
    if limits.images is None or limits.images.placeholder not in token_ids:
        return ""
    covered = {place for image in images for place in range(image.start, image.end)}
    for place, token in enumerate(token_ids):
        if token == limits.images.placeholder and place not in covered and not loss_mask[place]:
            return f"the placeholder at token {place} is of no image that is named"
    return ""


def check_sequences(limits: TokenLimits, sequences: Sequence[TrainSequence]) -> None:
    """Refuse what the model cannot compute.

    Raises:
        InvalidRequestError: Nothing is sampled, a sequence is too long, or an id is not the model's.
    """
    if not any(any(sequence.loss_mask) for sequence in sequences):
        raise InvalidRequestError(
            "the batch has no sampled token to learn from", hint="skip the step", field="loss_mask"
        )
    longest = max(len(sequence.token_ids) for sequence in sequences)
    if limits.context_length is not None and longest > limits.context_length:
        raise InvalidRequestError(
            f"a sequence has {longest} tokens, the model's context {limits.context_length}",
            hint="set limits.max_turns or limits.max_episode_tokens lower",
            field="token_ids",
        )
    # Out of range, an id would read foreign memory or stop the whole device.
    lowest = min(min(sequence.token_ids, default=0) for sequence in sequences)
    highest = max(max(sequence.token_ids, default=0) for sequence in sequences)
    if lowest < 0 or highest >= limits.vocabulary:
        raise InvalidRequestError(
            f"token ids go from {lowest} to {highest}, the model's from 0 to {limits.vocabulary - 1}",
            hint="render the prompts with this model's tokenizer",
            field="token_ids",
        )
    for number, sequence in enumerate(sequences):
        if sequence.images and (wrong := image_fault(sequence.images, sequence.token_ids, limits)):
            raise UnsupportedPartError(
                f"sequence {number}: {wrong}", hint="train on episodes of this model", field="images"
            )
