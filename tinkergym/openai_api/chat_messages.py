"""Messages of the OpenAI API as messages of a conversation, which templates of models render."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tinkergym.errors import InvalidRequestError, UnsupportedPartError
from tinkergym.images.stored_images import ImageFile, image_file
from tinkergym.messages import Message
from tinkergym.messages.checking import checked_messages

_ROLES = {"developer": "system", "function": "tool"}
_LEFT_OUT = frozenset(
    {
        "refusal",
        "annotations",
        "audio",
        "function_call",
        "reasoning",
        "reasoning_content",
        "id",
        "status",
        "phase",
    }
)
"""What clients repeat from earlier responses; templates have no place for it."""
_DATA_URL = re.compile(r"data:image/[\w.+-]+;base64,(.*)", re.DOTALL)


ReadImage = Callable[[bytes], ImageFile]
"""Checks an encoded image."""


def conversation(given: Sequence[Mapping[str, Any]], read_image: ReadImage = image_file) -> list[Message]:
    """Return the messages of a request as those of an episode, so that both render alike.

    Raises:
        InvalidRequestError: One is invalid, or a result of a tool follows no call; `field` says which.
    """
    messages = [_converted(message, number, read_image) for number, message in enumerate(given)]
    try:
        checked = checked_messages(messages, "messages")
    except ValueError as error:
        if isinstance(error, InvalidRequestError):
            raise
        raise InvalidRequestError(str(error), field="messages", code="invalid_message") from None
    for number, calls in _results(checked):
        _name_result(checked[number], calls, number)
    return checked


def _converted(message: Mapping[str, Any], number: int, read_image: ReadImage) -> dict[str, Any]:
    """Return a message in our format, not checked yet."""
    kept = {key: value for key, value in message.items() if value is not None and key not in _LEFT_OUT}
    role = kept.get("role")
    kept["role"] = _ROLES.get(role, role) if isinstance(role, str) else role
    content = kept.get("content", "")
    if isinstance(content, list):
        content = [
            _part(part, f"messages[{number}].content[{at}]", read_image) for at, part in enumerate(content)
        ]
        content = "" if content == [] else content
    kept["content"] = content
    if kept.get("tool_calls") == []:
        del kept["tool_calls"]
    elif isinstance(kept.get("tool_calls"), list):
        kept["tool_calls"] = [_call(call) for call in kept["tool_calls"]]
        if isinstance(content, str):  # As the agent loop shows an answer with calls.
            kept["content"] = content.strip()
    return kept


def _call(call: Any) -> Any:
    """Return a call without what only streams have."""
    return (
        {key: value for key, value in call.items() if key != "index"} if isinstance(call, Mapping) else call
    )


def _part(part: Any, where: str, read_image: ReadImage) -> Any:
    """Return a part of a message's content in our format.

    Raises:
        UnsupportedPartError: Models cannot read this kind of part.
    """
    kind = part.get("type") if isinstance(part, Mapping) else None
    match kind:
        case "text" | "input_text" | "output_text":
            return {"type": "text", "text": part.get("text")}
        case "refusal":
            return {"type": "text", "text": part.get("refusal")}
        case "image_url" | "input_image":
            return {"type": "image", "image": read_image(_image(part.get("image_url"), where))}
        case _:
            raise UnsupportedPartError(
                f"a part of type {kind!r:.80} is not supported", hint="send text and images", field=where
            )


def _image(given: Any, where: str) -> bytes:
    """Return the bytes of an image.

    Raises:
        UnsupportedPartError: It is not in the request: the service fetches nothing from elsewhere.
        InvalidRequestError: It is not base64.
    """
    url = given.get("url") if isinstance(given, Mapping) else given
    found = _DATA_URL.fullmatch(url) if isinstance(url, str) else None
    if found is None:
        raise UnsupportedPartError(
            "an image must be in the request: the service fetches none",
            hint="write its URL as data:image/png;base64,...",
            field=where,
        )
    try:
        return base64.b64decode(found[1], validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequestError("the image is not valid base64", field=where) from None


def _name_result(message: Message, calls: Mapping[str, str], number: int) -> None:
    """Name the tool of a result, as the agent loop does, and check that it follows its call.

    Raises:
        InvalidRequestError: It does not.
    """
    called = message.get("tool_call_id")
    if not calls:
        raise InvalidRequestError(
            f"message {number} is the result of a tool, but no call precedes it",
            hint="send the assistant's message with tool_calls before it",
            field=f"messages[{number}]",
            code="result_without_call",
        )
    if called is not None and called not in calls:
        raise InvalidRequestError(
            f"message {number} answers the call {called!r}, which the message before does not make",
            hint=f"its calls are {', '.join(sorted(map(repr, calls)))}",
            field=f"messages[{number}].tool_call_id",
            code="result_without_call",
        )
    if called is not None:
        message.setdefault("name", calls[called])


def _results(messages: Sequence[Message]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the number of each result of a tool, and the calls right before it: their tools by their ids."""
    calls: dict[str, str] = {}
    for number, message in enumerate(messages):
        if message["role"] == "tool":
            yield number, calls
        else:
            made = message.get("tool_calls", ())
            calls = {str(call.get("id", "")): str(call["function"]["name"]) for call in made}
