"""Datasets as they are uploaded: token ids with the spans to train on, in chunks identified by hash.

A chunk's name is the SHA-256 of its bytes, and a dataset's the SHA-256 of its chunks' names. Sending the same
data twice gives one dataset, and an interrupted upload continues with the missing chunks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from tinkergym.schema.model import WireModel
from tinkergym.schema.refusals import Refusal
from tinkergym.trajectory.content_parts import MOST_PARTS, ImageSpan, misplaced_image
from tinkergym.trajectory.trajectory import MOST_TOKENS, TokenId

DataKind = Literal["sft", "preference", "prompts"]

SEQUENCES_PER_RECORD: dict[DataKind, int] = {"sft": 1, "preference": 2, "prompts": 1}
"""A preference record is two sequences with the same beginning: chosen, then rejected. One of prompts is
empty if its row could not be rendered."""

MOST_CHUNKS = 100_000
"""The most chunks of one dataset."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class TokenSequence(WireModel):
    """A token sequence with the spans to train on."""

    token_ids: list[TokenId] = Field(min_length=1, max_length=MOST_TOKENS)
    trained: list[tuple[int, int]] = Field([], max_length=MOST_TOKENS)
    """(start, stop), ascending and separate; never the first token, which has no token before it. None in a
    prompt."""
    images: list[ImageSpan] = Field([], max_length=MOST_PARTS)
    """Where images are, in order; on tokens that are not trained on. The files are sent first."""

    @model_validator(mode="after")
    def _spans_are_in_order(self) -> Self:
        end = 0
        for start, stop in self.trained:
            if not max(end, 1) <= start < stop <= len(self.token_ids):
                raise Refusal(
                    "trained",
                    f"has the span ({start}, {stop})",
                    "spans ascend, are not empty, begin at 1 or later and end within the sequence's "
                    f"{len(self.token_ids)} tokens",
                    "spans",
                ).in_validator()
            end = stop
        if self.images:
            mask = [False] * len(self.token_ids)
            for start, stop in self.trained:
                mask[start:stop] = [True] * (stop - start)
            if wrong := misplaced_image(self.images, mask):
                raise ValueError(wrong)
        return self

    @property
    def trained_tokens(self) -> int:
        """Number of trained tokens."""
        return sum(stop - start for start, stop in self.trained)


class PromptNote(WireModel):
    """What belongs to a prompt besides its tokens; the service passes it on with the results."""

    where: str = Field("", max_length=200)
    """The place of its row: `line 7`."""
    fault: str = Field("", max_length=20_000)
    """Why it has no tokens."""
    kept: dict[str, JsonValue] = {}
    """Columns of its row to copy to the results."""
    tools: list[dict[str, JsonValue]] = Field([], max_length=1000)
    """Functions that the row offers."""


class DataChunk(WireModel):
    """Some records of a dataset; the body of `PUT /v1/data/chunks/{sha256}`."""

    kind: DataKind
    records: list[Annotated[list[TokenSequence], Field(max_length=2)]] = Field(
        min_length=1, max_length=1_000_000
    )
    notes: list[PromptNote] = Field([], max_length=1_000_000)
    """Of prompts: one per record."""

    @model_validator(mode="after")
    def _records_are_whole(self) -> Self:
        wanted, asked = SEQUENCES_PER_RECORD[self.kind], self.kind == "prompts"
        if any(len(record) != wanted and not (asked and not record) for record in self.records):
            reason = f"must have {wanted} sequences each where kind is {self.kind!r}"
            raise Refusal("records", reason, code="sequences").in_validator()
        if any(bool(sequence.trained) == asked for record in self.records for sequence in record):
            reason = f"must have {'no ' * asked}trained spans where kind is {self.kind!r}"
            raise Refusal("records", reason, code="spans").in_validator()
        if len(self.notes) != (len(self.records) if asked else 0):
            reason = "must be one per record of prompts, and none of other data"
            raise Refusal("notes", reason, code="notes").in_validator()
        return self


class DataManifest(WireModel):
    """The chunks of a dataset, in order; the body of `POST /v1/data`."""

    kind: DataKind
    chunks: list[Sha256] = Field(min_length=1, max_length=MOST_CHUNKS)

    @property
    def data_id(self) -> str:
        """The dataset's name: the same records in the same order give the same name."""
        return fingerprint(self.kind, self.chunks)


class DataView(WireModel):
    """A dataset as the service has it, or the chunks it lacks."""

    data_id: Sha256
    kind: DataKind
    missing: list[Sha256] = Field(default_factory=list, max_length=MOST_CHUNKS)
    """Chunks that must be sent. The numbers below are valid only when this is empty."""
    records: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    longest: int = 0
    """Tokens of the longest sequence."""
    largest_token_id: int = 0


def fingerprint(kind: DataKind, chunks: Sequence[str]) -> str:
    """Return the name of the dataset that these chunks make."""
    text = "\n".join(["tinkergym data 1", kind, *chunks])
    return hashlib.sha256(text.encode()).hexdigest()


MOST_NAMES = 1000
"""Each is a change of a file on the disk."""


class ImageNames(WireModel):
    """Hashes of images; the body of `POST /v1/images/missing`, and its response."""

    images: list[Sha256] = Field(max_length=MOST_NAMES)


class ImageKept(WireModel):
    """An image is on the service's disk."""

    sha256: Sha256
