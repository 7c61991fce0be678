"""Messages written by users: what is wrong with one, and copies of those that are right."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tinkergym.errors import InvalidImageError, UnsupportedPartError
from tinkergym.messages.image_parts import image_part
from tinkergym.messages.message import ROLES, Message
from tinkergym.trajectory.content_parts import Content, content_of
from tinkergym.user_code.quoting import quoted, type_in_words

MOST_NAME_CHARACTERS = 256
"""The longest `name` and `tool_call_id` of a message."""
_OPTIONAL = ("name", "tool_call_id")
_OF_ONE_ROLE = {"tool_calls": "assistant", "tools": "system"}


def message_fault(value: object) -> str:
    """Return why a value is not a `Message`, as text to put after a colon; "" if it is one."""
    if not isinstance(value, dict):
        return f"a message must be a dict with 'role' and 'content', not {type(value).__name__}"
    if unknown := sorted(map(quoted, value.keys() - {"role", "content", *_OPTIONAL, *_OF_ONE_ROLE})):
        return (
            f"a message has no {unknown[0]!r}; its keys are role, content, name, tool_call_id, tool_calls "
            "and tools"
        )
    role, content = value.get("role"), value.get("content")
    if role not in ROLES:
        return f"the role must be one of {', '.join(ROLES)}, not {quoted(role)!a}"
    if not isinstance(content, str) or not is_unicode(content):
        found = ascii(content[:200]) if isinstance(content, str) else type_in_words(content)
        return f"the content must be a str without lone surrogates, but it is {found}"
    for key in _OPTIONAL:
        name = value.get(key, "-")
        if not (isinstance(name, str) and 0 < len(name) <= MOST_NAME_CHARACTERS and is_unicode(name)):
            return f"{key} must be a str of 1 to {MOST_NAME_CHARACTERS} characters: {quoted(name)!a}"
    return _fault_of_functions(value) if len(value) > 2 else ""


def checked_messages(values: Any, where: str) -> list[Message]:
    """Return copies of messages that an environment wrote.

    Raises:
        TypeError: It is not a list.
        ValueError: One is not a message.
        UnsupportedPartError: One has an image in an unsupported form.
        InvalidImageError: An image is broken, animated or too large.
    """
    if not isinstance(values, list | tuple):
        raise TypeError(f"{where} must be a list of messages, not {type_in_words(values)}")
    return [_message(value, f"{where}[{index}]") for index, value in enumerate(values)]


def checked_content(values: Sequence[Any], where: str) -> Content:
    """Return a message's content that is given as a list of parts. Images are read and checked.

    Raises:
        UnsupportedPartError: An image is given in an unsupported form.
        InvalidImageError: An image is broken, animated or too large.
        ValueError: It is not a list of parts.
    """
    return _parts(values, where)


def is_unicode(text: str) -> bool:
    """Whether the string is Unicode text without lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _message(value: Any, where: str) -> Message:
    """Return a copy with plain strings, so later changes by the environment have no effect here."""
    parts: Content = ""
    if isinstance(value, dict) and None in value.values():
        # Rows of Parquet have the keys of all messages, as null.
        value = {key: found for key, found in value.items() if found is not None or key == "content"}
        if value.get("tool_calls") and value.get("content") is None:
            value["content"] = ""
    if isinstance(value, dict) and isinstance(value.get("content"), list | tuple):
        parts = _parts(value["content"], where)
        value = {**value, "content": parts if isinstance(parts, str) else ""}
    if fault := message_fault(value):
        raise ValueError(f"{where}: {fault}")
    message: dict[str, Any] = {
        key: _copied(found) if key in _OF_ONE_ROLE else str(found) for key, found in value.items()
    }
    return {**message, "content": parts or message["content"]}  # type: ignore[typeddict-item]


def _fault_of_functions(message: dict[str, Any]) -> str:
    """Return what is wrong with a message's `tool_calls` or `tools`; "" if nothing is."""
    for key, role in _OF_ONE_ROLE.items():
        if key not in message:
            continue
        if message["role"] != role:
            return f"only a message of the {role} has {key}"
        found = message[key]
        if not isinstance(found, list) or not all(map(_names_a_function, found)):
            return f"{key} must be a list of objects with a function that has a name: {quoted(found)}"
        try:
            json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            return f"{key} cannot be written as JSON: {quoted(error)}"
    for number, call in enumerate(message.get("tool_calls", ())):
        if not isinstance(_arguments(call["function"].get("arguments", {})), dict):
            return f"tool_calls[{number}].function.arguments must be an object, or JSON of one"
    return ""


def _names_a_function(value: Any) -> bool:
    function = value.get("function") if isinstance(value, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str) and bool(function["name"])


def _arguments(written: Any) -> Any:
    """Return a call's arguments as an object; in OpenAI's API they are JSON in a string."""
    if written is None:  # As models write the arguments of a tool that has none.
        return {}
    if not isinstance(written, str):
        return written
    try:
        return json.loads(written or "{}")
    except (ValueError, RecursionError):
        return None


def _copied(functions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a deep copy in which the arguments of calls are objects, as chat templates expect."""
    copied: list[dict[str, Any]] = json.loads(json.dumps(functions))
    for one in copied:
        if "arguments" in one["function"]:
            one["function"]["arguments"] = _arguments(one["function"]["arguments"])
    return copied


def _parts(values: Sequence[Any], where: str) -> Content:
    try:
        content = content_of([_with_its_hash(value, where) for value in values])
    except (UnsupportedPartError, InvalidImageError):
        raise
    except ValueError as error:
        raise ValueError(
            f"{where}['content'] is a list that does not consist of parts: {quoted(values)}"
        ) from error
    texts = [content] if isinstance(content, str) else [t for part in content for _, t in part]
    if not all(map(is_unicode, texts)):
        raise ValueError(f"{where}['content'] contains a lone surrogate, which is not valid Unicode text")
    return content


def _with_its_hash(value: Any, where: str) -> Any:
    """Return a part unchanged, except that an image is replaced by its hash."""
    if not isinstance(value, Mapping) or not str(value.get("type", "")).startswith("image"):
        return value
    if value.get("type") == "image" and "image" in value and len(value) == 2:
        return image_part(value["image"], f"{where}['content']")
    if value.get("type") == "image" and "sha256" in value:
        return value
    raise UnsupportedPartError(
        f"{where}['content'] contains an image in an unsupported form",
        hint="write {'type': 'image', 'image': pixels, a Pillow image, or the bytes of a file}",
    )
