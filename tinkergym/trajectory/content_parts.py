"""Typed parts of observations and completions: text, images, tool calls and their results.

A plain string is short for one text part. Nearly all content is that, and it has no overhead.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, TypeAdapter, model_validator

from tinkergym.trajectory.bounded_numbers import Record

MOST_PARTS = 1000
"""The most parts of one content; also the most images of one segment."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Name = Annotated[str, Field(min_length=1, max_length=256)]


class TextPart(Record):
    """Text."""

    type: Literal["text"] = "text"
    text: str


class ImagePart(Record):
    """An image, by the hash of its encoded bytes."""

    type: Literal["image"] = "image"
    sha256: Sha256
    _file: Any = PrivateAttr(None)
    """The image itself, if available, so that it lives as long as a message shows it."""

    @property
    def file(self) -> Any:
        """The `ImageFile`, if available."""
        return self._file

    @classmethod
    def of(cls, file: Any) -> Self:
        """Return the part for an `ImageFile`, which it keeps alive."""
        part = cls(sha256=file.sha256)
        part._file = file
        return part


class ToolCallPart(Record):
    """A call of a tool that the policy requested."""

    type: Literal["tool_call"] = "tool_call"
    id: _Name
    name: _Name
    """Name of the tool."""
    arguments: str
    """As the policy wrote them, usually JSON; not checked here."""


class ToolResultPart(Record):
    """What a tool returned."""

    type: Literal["tool_result"] = "tool_result"
    id: _Name
    """Id of the call."""
    text: str


Part = Annotated[TextPart | ImagePart | ToolCallPart | ToolResultPart, Field(discriminator="type")]

Content = str | Annotated[list[Part], Field(max_length=MOST_PARTS)]
"""A string is short for one text part."""

_PARTS: TypeAdapter[list[Part]] = TypeAdapter(Annotated[list[Part], Field(max_length=MOST_PARTS)])


class ImageSpan(Record):
    """Position of an image's placeholder tokens: [start, end) of a list of token ids."""

    sha256: Sha256
    start: int = Field(ge=0)
    end: int

    @model_validator(mode="after")
    def _has_a_token(self) -> Self:
        if self.end <= self.start:
            raise ValueError("an image has at least one token")
        return self

    def moved(self, by: int) -> ImageSpan:
        """Return this span, `by` tokens further on."""
        return ImageSpan(sha256=self.sha256, start=self.start + by, end=self.end + by)


def content_of(parts: Any) -> Content:
    """Return parts in their shortest form: parts that are all text become one string.

    Args:
        parts: `Part`s, or mappings with their fields.

    Raises:
        ValueError: They are not parts.
    """
    checked = _PARTS.validate_python(parts)
    texts = [part.text for part in checked if isinstance(part, TextPart)]
    return "".join(texts) if len(texts) == len(checked) else checked


def content_text(content: Content) -> str:
    """Return content as readable text; an image is shown by the start of its hash.

    A call is written in the syntax `hermes`, as environments receive it.
    """
    return content if isinstance(content, str) else "".join(map(_part_text, content))


def other_than_text(content: Content) -> str:
    """Return the type of the first part that is not text, such as `image`; empty if there is none."""
    if isinstance(content, str):
        return ""
    return next((part.type for part in content if not isinstance(part, TextPart)), "")


def misplaced_image(images: Sequence[ImageSpan], loss_mask: Sequence[bool]) -> str:
    """Return what is wrong with the positions of images among tokens; empty if nothing is."""
    free = 0
    for number, image in enumerate(images):
        if image.start < free:
            return f"image {number} begins before the previous image ends"
        if image.end > len(loss_mask):
            return (
                f"image {number} has the tokens [{image.start}, {image.end}), but there are only "
                f"{len(loss_mask)}"
            )
        if any(loss_mask[image.start : image.end]):
            return f"image {number} overlaps a sampled token"
        free = image.end
    return ""


def _part_text(part: Part) -> str:
    if isinstance(part, TextPart | ToolResultPart):
        return part.text
    if isinstance(part, ImagePart):
        return f"[image {part.sha256[:12]}]"
    # Like the environment received it, so that parsing the action again finds the call.
    name = json.dumps(part.name, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {part.arguments}}}\n</tool_call>'
