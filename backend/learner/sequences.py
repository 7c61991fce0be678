"""The learner's input: token ids, which of them the policy sampled, and their advantages.

Plain frozen records without tensors; independent of text, environments and rewards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tinkergym.errors import InvalidRequestError, UnsupportedPartError
from tinkergym.schema.sampling import Completion, SampleRequest
from tinkergym.schema.views import ImageRules
from tinkergym.trajectory.content_parts import ImageSpan, misplaced_image
from tinkergym.trajectory.trajectory import Segment

FloatArray = npt.NDArray[np.float32]


_PER_SAMPLED_TOKEN = ("proximal_logprobs", "reference_logprobs", "value_targets", "old_values")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSequence:
    """A run of tokens to train on; all lists have the same length T."""

    token_ids: Sequence[int]
    loss_mask: Sequence[bool]
    """True for sampled tokens to train on; never for the first token, which nothing predicts."""
    sampling_logprobs: Sequence[float | None]
    """From the policy that sampled, in nats at `temperature`; only read where `loss_mask` is True."""
    advantage: float | Sequence[float] = 0.0
    """One for the whole sequence, or one per token (T; only read where `loss_mask` is True)."""
    weight: float = 1.0
    """Factor on everything that its tokens add to the loss: the policy's part, KL, entropy and value."""
    temperature: float = 1.0
    """The sampling temperature; the learner's logits are divided by it."""
    proximal_logprobs: Sequence[float] | FloatArray | None = None
    """One per token with `loss_mask` True: from the policy at the step's first update. Needed by losses with
    an importance correction, in later updates only."""
    reference_logprobs: Sequence[float] | FloatArray | None = None
    """One per token with `loss_mask` True: from the reference of a KL penalty."""
    value_targets: Sequence[float] | FloatArray | None = None
    """One per token with `loss_mask` True: the value head's target before it, in units of return."""
    old_values: Sequence[float] | FloatArray | None = None
    """One per token with `loss_mask` True: the value at the step's first update."""
    images: Sequence[ImageSpan] = ()
    """The images' ranges, in order; on tokens that are not trained on."""

    @classmethod
    def sampled(
        cls, request: SampleRequest, answer: Completion, *, advantage: float = 0.0, temperature: float = 1.0
    ) -> TrainSequence:
        """Return a prompt and its completion, of which the completion is trained on."""
        prompt = len(request.prompt_ids)
        return cls(
            token_ids=[*request.prompt_ids, *answer.token_ids],
            loss_mask=[False] * prompt + [True] * len(answer.token_ids),
            sampling_logprobs=[*[None] * prompt, *answer.sampling_logprobs],
            advantage=advantage,
            temperature=temperature,
            images=request.images,
        )

    def __post_init__(self) -> None:
        length = len(self.token_ids)
        if not length == len(self.loss_mask) == len(self.sampling_logprobs):
            raise InvalidRequestError(
                f"token_ids has {length}, loss_mask {len(self.loss_mask)} and sampling_logprobs "
                f"{len(self.sampling_logprobs)} entries",
                hint="pass one entry per token in each",
                field="sampling_logprobs",
            )
        if length and self.loss_mask[0]:
            raise InvalidRequestError(
                "the first token is marked as sampled, but there is nothing before it to predict it from",
                hint="start a sequence with its prompt",
                field="loss_mask",
            )
        if not isinstance(self.advantage, int | float) and len(self.advantage) != length:
            raise InvalidRequestError(
                f"{len(self.advantage)} advantages for {length} tokens",
                hint="pass one number, or one per token",
                field="advantage",
            )
        for field in _PER_SAMPLED_TOKEN:
            values = getattr(self, field)
            if values is not None and len(values) != (sampled := sum(map(bool, self.loss_mask))):
                raise InvalidRequestError(
                    f"{len(values)} {field} for {sampled} tokens with loss_mask True",
                    hint="pass one per such token, in order",
                    field=field,
                )
        if self.images and (wrong := misplaced_image(self.images, self.loss_mask)):
            raise InvalidRequestError(wrong, hint="render the sequence again", field="images")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise InvalidRequestError(
                f"temperature must be above 0, not {self.temperature}",
                hint="train on tokens that were sampled at a temperature above 0",
                field="temperature",
            )

    @classmethod
    def from_segment(
        cls, segment: Segment, *, advantage: float | Sequence[float], temperature: float = 1.0
    ) -> TrainSequence:
        """Create a sequence from a trajectory's segment."""
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
    """The size of a whole training batch, by which aggregations divide.

    If a batch is passed in several calls, each call receives the totals of all, so the gradients add up to
    the gradient of the whole.
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
    """The sampled tokens of a batch, concatenated in input order: P of them."""

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
                only some sequences have an optional list.
        """
        counts, logprobs, advantages = [], [], []
        for number, sequence in enumerate(sequences):
            places = np.flatnonzero(np.asarray(sequence.loss_mask, dtype=bool))
            counts.append(len(places))
            # None becomes NaN, which is refused below on sampled tokens.
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
                    f"sequence {number} has an advantage that is not finite",
                    hint="leave failed episodes out of the batch",
                    field="advantage",
                )
        return cls(
            counts=np.asarray(counts, dtype=np.int64),
            sampling_logprobs=_joined(logprobs),
            advantages=_joined(advantages),
            **{field: _optional(sequences, field) for field in _PER_SAMPLED_TOKEN},
        )

    @classmethod
    def unjudged(cls, sequences: Sequence[TrainSequence]) -> SampledTokens:
        """Return the sampled tokens without further data: all logprobs and advantages are 0."""
        counts = np.asarray([np.count_nonzero(sequence.loss_mask) for sequence in sequences])
        blank = np.zeros(counts.sum(), dtype=np.float32)
        return cls(counts=counts, sampling_logprobs=blank, advantages=blank)

    @property
    def sequence_of(self) -> npt.NDArray[np.int64]:
        """[P], the number of each token's sequence."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def split(self, values: FloatArray) -> list[FloatArray]:
        """Split an array over all sampled tokens into one per sequence, in input order."""
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
            hint="set them for every sequence, or for none",
            field=field,
        )
    joined = _joined([np.asarray(part, dtype=np.float64) for part in parts])
    if not np.isfinite(joined).all():
        raise InvalidRequestError(f"{field} contains a number that is not finite", field=field)
    return joined


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLimits:
    """A model's limits."""

    vocabulary: int
    """Token ids are smaller than this."""
    context_length: int | None
    """Most tokens of a sequence; None if the model does not define it."""
    images: ImageRules | None = None
    """How images appear in a sequence; None if the model supports only text."""


def image_fault(images: Sequence[ImageSpan], token_ids: Sequence[int], limits: TokenLimits) -> str:
    """Return what is wrong with a record's images for this model; empty if nothing is."""
    rules = limits.images
    if rules is None:
        return "it contains an 'image' part, but the model supports only text" if images else ""
    for number, image in enumerate(images):
        if rules.tokens and image.end - image.start != rules.tokens:
            return f"image {number} has {image.end - image.start} tokens, and the model's have {rules.tokens}"
        if set(token_ids[image.start : image.end]) != {rules.placeholder}:
            return f"image {number} covers tokens that are not placeholders"
    return ""


def left_out_image(
    images: Sequence[ImageSpan], token_ids: Sequence[int], loss_mask: Sequence[bool], limits: TokenLimits
) -> str:
    """Describe a placeholder without an image, if any; sampled ones need none."""
    if limits.images is None or limits.images.placeholder not in token_ids:
        return ""
    covered = {place for image in images for place in range(image.start, image.end)}
    for place, token in enumerate(token_ids):
        if token == limits.images.placeholder and place not in covered and not loss_mask[place]:
            return f"the placeholder at token {place} belongs to no image in `images`"
    return ""


def check_sequences(limits: TokenLimits, sequences: Sequence[TrainSequence]) -> None:
    """Raise an error for what the model cannot compute.

    Raises:
        InvalidRequestError: No token is sampled, a sequence is too long, or an id is outside the vocabulary.
    """
    if not any(any(sequence.loss_mask) for sequence in sequences):
        raise InvalidRequestError(
            "the batch has no sampled token to train on", hint="skip the step", field="loss_mask"
        )
    longest = max(len(sequence.token_ids) for sequence in sequences)
    if limits.context_length is not None and longest > limits.context_length:
        raise InvalidRequestError(
            f"a sequence has {longest} tokens, more than the model's context of {limits.context_length}",
            hint="lower limits.max_turns or limits.max_episode_tokens",
            field="token_ids",
        )
    # An id out of range would read invalid memory or crash the whole device.
    lowest = min(min(sequence.token_ids, default=0) for sequence in sequences)
    highest = max(max(sequence.token_ids, default=0) for sequence in sequences)
    if lowest < 0 or highest >= limits.vocabulary:
        raise InvalidRequestError(
            f"token ids range from {lowest} to {highest}, but the model's from 0 to {limits.vocabulary - 1}",
            hint="render the prompts with this model's tokenizer",
            field="token_ids",
        )
    for number, sequence in enumerate(sequences):
        if sequence.images and (wrong := image_fault(sequence.images, sequence.token_ids, limits)):
            raise UnsupportedPartError(
                f"sequence {number}: {wrong}", hint="train on episodes of this model", field="images"
            )
