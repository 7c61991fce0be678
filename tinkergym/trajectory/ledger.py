"""Ledger: the tokens of one agent in one episode, append-only.

Sampled ids are added unchanged, with their logprobs; the environment's ids are added without. Entries are
never changed: an edit of history closes the segment and opens another.

The engine's completion, the stored record and the learner's batch hold the same ids in different containers:
each place computes their digest from its own copy.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tinkergym.trajectory.content_parts import ImageSpan, misplaced_image
from tinkergym.trajectory.trajectory import Segment

DIGEST_BYTES = 16
"""Length of a completion's digest."""

NO_DIGEST = bytes(DIGEST_BYTES)
"""The value for a missing digest."""


@dataclass(frozen=True, slots=True)
class Span:
    """Position of sampled tokens: [start, end) of a segment."""

    segment: int
    start: int
    end: int


class Ledger:
    """An append-only record of given and sampled token ids.

    Invariant: a token has a finite logprob if and only if the policy sampled it.
    """

    def __init__(self) -> None:
        self._token_ids: list[list[int]] = [[]]
        self._logprobs: list[list[float | None]] = [[]]
        self._images: list[list[ImageSpan]] = [[]]
        self._sampled = 0

    @property
    def length(self) -> int:
        """Tokens in the open segment."""
        return len(self._token_ids[-1])

    @property
    def sampled_tokens(self) -> int:
        """Tokens that the policy sampled, in all segments."""
        return self._sampled

    def context(self, delta: Sequence[int] = ()) -> list[int]:
        """Return a copy of the open segment's ids, followed by `delta`: the prompt of the next completion."""
        return [*self._token_ids[-1], *delta]

    def context_images(self, images: Sequence[ImageSpan] = ()) -> list[ImageSpan]:
        """Return the images' positions in `context`: those of the open segment, and `images` of the delta."""
        return [*self._images[-1], *(image.moved(self.length) for image in images)]

    def append_given(self, token_ids: Sequence[int], images: Sequence[ImageSpan] = ()) -> None:
        """Add tokens that the policy did not sample.

        Args:
            token_ids: Including the placeholders of images.
            images: Their positions in `token_ids`, in order.

        Raises:
            ValueError: An image is out of range; nothing was added.
        """
        if images:
            if wrong := misplaced_image(images, [False] * len(token_ids)):
                raise ValueError(wrong)
            self._images[-1].extend(image.moved(self.length) for image in images)
        self._token_ids[-1].extend(token_ids)
        self._logprobs[-1].extend([None] * len(token_ids))

    def append_sampled(self, token_ids: Sequence[int], sampling_logprobs: Sequence[float]) -> Span:
        """Add tokens that the policy sampled.

        Args:
            token_ids: As the engine returned them, including the stop token.
            sampling_logprobs: One per token, in nats, finite and at most 0 up to rounding.

        Raises:
            ValueError: There are no tokens, or tokens and logprobs do not match; nothing was added.
        """
        if not token_ids:
            raise ValueError("a completion has at least one token, but none were returned")
        if len(token_ids) != len(sampling_logprobs):
            raise ValueError(f"{len(token_ids)} tokens were returned with {len(sampling_logprobs)} logprobs")
        # One NaN or infinity makes the sum so: a test of each token would cost more.
        if not math.isfinite(math.fsum(sampling_logprobs)):
            raise ValueError("a sampling logprob is not finite")
        start = self.length
        self._token_ids[-1].extend(token_ids)
        self._logprobs[-1].extend(sampling_logprobs)
        self._sampled += len(token_ids)
        return Span(len(self._token_ids) - 1, start, self.length)

    def open_segment(self) -> None:
        """Close the open segment and start an empty one, because the history changes."""
        if self._token_ids[-1]:
            self._token_ids.append([])
            self._logprobs.append([])
            self._images.append([])

    def segments(self) -> list[Segment]:
        """Return copies of all segments with tokens."""
        return [
            # Valid by construction; checking every token again would double the cost of an episode.
            Segment.model_construct(
                token_ids=list(token_ids),
                loss_mask=[p is not None for p in logprobs],
                sampling_logprobs=list(logprobs),
                images=list(images),
            )
            for token_ids, logprobs, images in zip(self._token_ids, self._logprobs, self._images, strict=True)
            if token_ids
        ]


def completion_digest(policy_version: int, token_ids: Sequence[int]) -> bytes:
    """Return the digest of the tokens of one completion and the version that sampled them."""
    packed = struct.pack(f"<{len(token_ids) + 1}q", policy_version, *token_ids)
    return hashlib.blake2b(packed, digest_size=DIGEST_BYTES).digest()
