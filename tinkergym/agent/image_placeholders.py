"""Images in prompts: what a model's processor makes of them, applied to token ids.

A template writes one placeholder per image. The processor expands it to as many as the image has features,
with markers around them. This is done on token ids, never on text, so that a message cannot imitate an image.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tinkergym.agent.templates import ChatTemplate
from tinkergym.errors import InvalidImageError, TemplateError, UnsupportedPartError
from tinkergym.images.stored_images import alive
from tinkergym.messages import Message
from tinkergym.schema.views import ImageRules, ImageSizing
from tinkergym.trajectory.content_parts import ImagePart, ImageSpan, TextPart

MARK = "\U0010fffe"
"""Stands for an image where a message is one string; Unicode says that no text uses it."""
_MOST_NARROW = 200
"""As in the processors of the Qwen-VL family."""


class ImageTemplate:
    """A chat template that receives messages with `MARK`s and shows an image at each."""

    def __init__(self, template: ChatTemplate) -> None:
        """Find out which form of content the template needs: some only show lists of parts."""
        self._template = template
        self.source, self.special_tokens = template.source, template.special_tokens
        self._always_parts = not self._shows([{"role": "user", "content": "tinkergymShown7f3a"}])

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool) -> str:
        """Return the text of a conversation, as `ChatTemplate.render` does."""
        whole = [self._in_parts(message) for message in messages]
        return self._template.render(whole, add_generation_prompt=add_generation_prompt)

    def _in_parts(self, message: Mapping[str, Any]) -> dict[str, Any]:
        content = message.get("content")
        if not isinstance(content, str):  # A message with `tool_calls` may have no content.
            return dict(message)
        if MARK not in content and not self._always_parts:
            return dict(message)
        return {**message, "content": list(_parts(content))}

    def _shows(self, messages: list[Message]) -> bool:
        try:
            return "tinkergymShown7f3a" in self._template.render(messages, add_generation_prompt=True)
        except TemplateError:
            return False


def _parts(content: str) -> Iterator[dict[str, str]]:
    for number, text in enumerate(content.split(MARK)):
        if number:
            yield {"type": "image"}
        if text:
            yield {"type": "text", "text": text}


def with_marks(message: Message) -> Message:
    """Return a message whose content is one string, with a mark for each image.

    Raises:
        UnsupportedPartError: It has a part that is neither text nor an image, or its text holds the mark.
    """
    content = message["content"]
    texts = []
    for part in [TextPart(text=content)] if isinstance(content, str) else content:
        if isinstance(part, TextPart):
            if MARK in part.text:
                raise UnsupportedPartError(
                    f"a message of the {message['role']} contains U+10FFFE, which is not a character",
                    hint="remove it",
                )
            texts.append(part.text)
        elif isinstance(part, ImagePart):
            texts.append(MARK)
        else:
            raise UnsupportedPartError(
                f"a message of the {message['role']} contains a part of type {part.type!r}, but this model "
                f"supports only text and images",
                hint="convert it to text",
                field="content",
            )
    return {**message, "content": "".join(texts)}


def hashes_of(messages: Sequence[Message]) -> list[str]:
    """Return the hashes of the images in messages, in order."""
    return [
        part.sha256
        for message in messages
        if not isinstance(message["content"], str)
        for part in message["content"]
        if isinstance(part, ImagePart)
    ]


def counts_of(messages: Sequence[Message], rules: ImageRules) -> list[int]:
    """Return the number of tokens of each image in messages, in order.

    Raises:
        InvalidImageError: It depends on an image's size, and the image is not in this process.
    """
    hashes = hashes_of(messages)
    if rules.by_size is None:
        return [rules.tokens] * len(hashes)
    counts = []
    for sha256 in hashes:
        file = alive(sha256)  # messages hold what they show
        if file is None:
            raise InvalidImageError(
                f"the image {sha256} is not in this process, but its size is needed to count its tokens",
                hint="show the image itself, not its hash alone",
            )
        counts.append(count_by_size(rules.by_size, height=file.height, width=file.width))
    return counts


def count_by_size(sizing: ImageSizing, *, height: int, width: int) -> int:
    """Return the number of tokens of an image, as resized by the processors of the Qwen-VL family.

    Raises:
        InvalidImageError: It is too long and narrow.
    """
    if max(height, width) > _MOST_NARROW * min(height, width):
        raise InvalidImageError(
            f"an image of {width} x {height} pixels is too narrow for the model: one side is more than "
            f"{_MOST_NARROW} times as long as the other",
            hint="show a part of it",
        )
    factor = sizing.factor
    # Python's rounding, halves to even numbers, is that of the processors too.
    rows, columns = round(height / factor), round(width / factor)
    pixels = rows * columns * factor * factor
    if pixels > sizing.most_pixels:
        shrink = math.sqrt((height * width) / sizing.most_pixels)
        rows = max(1, math.floor(height / shrink / factor))
        columns = max(1, math.floor(width / shrink / factor))
    elif pixels < sizing.least_pixels:
        grow = math.sqrt(sizing.least_pixels / (height * width))
        rows = math.ceil(height * grow / factor)
        columns = math.ceil(width * grow / factor)
    return rows * columns


def expanded(ids: Sequence[int], rules: ImageRules, counts: Sequence[int]) -> list[int]:
    """Return ids with each image placeholder expanded as in the processor.

    Args:
        ids: Token ids of the template's text.
        rules: The model's rules.
        counts: The images' numbers of tokens, in order.

    Raises:
        TemplateError: The template did not write one placeholder per image.
    """
    written = sum(token == rules.placeholder for token in ids)
    if written != len(counts):
        raise TemplateError(
            f"the chat template wrote {written} of {len(counts)} images",
            hint="use the template that came with the model's processor",
        )
    left = iter(counts)
    out: list[int] = []
    for token in ids:
        if token == rules.placeholder:
            out += [*rules.before, *[rules.placeholder] * next(left), *rules.after]
        else:
            out.append(token)
    return out


def image_spans(
    ids: Sequence[int], rules: ImageRules, hashes: Sequence[str], counts: Sequence[int]
) -> list[ImageSpan]:
    """Return the images' ranges in ids returned by `expanded`, or in ids that end with such ids.

    Args:
        ids: Token ids of text that was not sampled.
        rules: The model's rules.
        hashes: Hashes of the images, in order; if the ids contain fewer images, these are the last ones.
        counts: The images' numbers of tokens.
    """
    left = sum(token == rules.placeholder for token in ids)
    first = len(counts)
    while left > 0 and first > 0:
        first -= 1
        left -= counts[first]
    assert left == 0, "the placeholders are not those of the images"
    spans: list[ImageSpan] = []
    place = 0
    for sha256, count in zip(hashes[first:], counts[first:], strict=True):
        place = ids.index(rules.placeholder, place)
        spans.append(ImageSpan(sha256=sha256, start=place, end=place + count))
        place += count
    return spans
