"""What an environment server and its clients say to each other, version 1. Knows neither FastAPI nor sockets.

A message is a JSON object. Without arrays it is one text frame; with arrays it is one binary frame: the
length of the JSON as four bytes (little-endian), the JSON, and the bytes of the arrays one after the other,
whose lengths the JSON lists under `$blobs`.

The client speaks first and gets one answer to each message:

- `about` says what is served: spaces, metadata, limits. It takes no place.
- `open` takes a place under an id that the client drew, or takes it up again after a lost connection.
- `reset`, `step`, `render` and `ask` are the calls. They are numbered from 0 within a session, under `i`. The
  last number sent again, in the same words, gets the stored answer: nothing is played twice.
- `close` gives the place back.

An answer that carries an `error` has the error's type, message, hint and field.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final, NoReturn

from tinkergym.errors import InvalidRequestError, TinkerGymError
from tinkergym.serving.values import Blob, Blobs, pack, unpack

VERSION: Final = 1
PATH: Final = "/v1/session"

CALLS: Final = frozenset({"reset", "step", "render", "ask"})
QUESTIONS: Final = frozenset({"gold_action", "legal_actions"})
"""Methods beyond Gymnasium's that an environment may offer and `ask` may call."""
MESSAGE_BYTES: Final = 16 * 2**20
"""Longest message, unless a server is told otherwise."""

MOST_JSON_CHARACTERS: Final = 2**26
"""Of the JSON in a message, without the arrays."""
MOST_JSON_VALUES: Final = 2**20
"""Of that JSON, strings counted by their commas: each value takes many times what it does in the frame."""

_LENGTH = struct.Struct("<I")

Message = dict[str, Any]
Frame = str | bytes


def encode(message: Message) -> Frame:
    """Return the frame that carries a message.

    Raises:
        TypeError: It holds something that cannot travel.
    """
    blobs: list[Blob] = []
    try:
        packed = {key: pack(value, blobs) for key, value in message.items()}
        if not blobs:
            return _json(packed)
        head = _json({**packed, "$blobs": [len(blob) for blob in blobs]}).encode()
    except RecursionError:
        raise TypeError("it is nested too deeply to travel") from None
    return b"".join((_LENGTH.pack(len(head)), head, *blobs))


def decode(frame: Frame) -> Message:
    """Return the message in a frame.

    Raises:
        InvalidRequestError: It carries none.
    """
    try:
        return _decode_text(frame) if isinstance(frame, str) else _decode_binary(frame)
    except (ValueError, TypeError, struct.error, RecursionError) as error:
        raise InvalidRequestError(
            f"a frame is no message of this protocol: {type(error).__name__}: {str(error)[:200]}",
            hint="is the other side a tinkergym environment server or client?",
        ) from None


def error_message(error: TinkerGymError, *, index: int | None = None) -> Message:
    """Return the answer that carries an error; with an index if it is the answer to that call."""
    message: Message = {"error": error.to_wire()}
    retry_after = getattr(error, "retry_after_seconds", None)
    if retry_after is not None:
        message["retry_after_seconds"] = retry_after
    if index is not None:
        message["i"] = index
    return message


def _json(value: Any) -> str:
    # ASCII only, so that even a lone surrogate in a model's answer arrives as it was sent.
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _decode_text(text: str) -> Message:
    message = _object(text)
    # Most messages hold nothing that is written with a `$`.
    return {key: unpack(value, []) for key, value in message.items()} if '"$' in text else message


def _decode_binary(data: bytes) -> Message:
    (length,) = _LENGTH.unpack_from(data)
    begin = _LENGTH.size + length
    if begin > len(data):
        raise ValueError(f"a head of {length} bytes is announced, but {len(data)} came in all")
    message = _object(bytes(data[_LENGTH.size : begin]).decode())
    lengths = message.pop("$blobs", None)
    if not isinstance(lengths, list) or not all(type(n) is int and n >= 0 for n in lengths):
        raise ValueError("$blobs must list the lengths of what follows")
    if begin + sum(lengths) != len(data):
        raise ValueError(f"$blobs lists {sum(lengths)} bytes, but {len(data) - begin} follow")
    view = memoryview(data)
    blobs: Blobs = []
    for n in lengths:
        blobs.append(view[begin : begin + n])
        begin += n
    return {key: unpack(value, blobs) for key, value in message.items()}


def _object(text: str) -> Message:
    if len(text) > MOST_JSON_CHARACTERS:
        raise ValueError(f"its JSON has {len(text)} characters, and at most {MOST_JSON_CHARACTERS} are taken")
    values = sum(map(text.count, ",[{:"))
    if values > MOST_JSON_VALUES:
        raise ValueError(f"its JSON holds about {values} values, and at most {MOST_JSON_VALUES} are taken")
    value = json.loads(text, parse_constant=_refuse_constant)
    if not isinstance(value, dict):
        raise TypeError(f"it is a JSON {type(value).__name__}, not an object")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
