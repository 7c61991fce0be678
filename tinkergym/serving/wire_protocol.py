"""The protocol between an environment server and its clients, version 1. Independent of FastAPI and sockets.

A message is a JSON object. Without arrays it is one text frame; with arrays it is one binary frame: the
length of the JSON as four bytes (little-endian), the JSON, and the bytes of the arrays one after the other,
whose lengths the JSON lists under `$blobs`.

The client sends messages and gets one response to each:

- `about` says what is served: spaces, metadata, limits. It does not use a place.
- `open` reserves a place under an id chosen by the client, or resumes it after a lost connection.
- `reset`, `step`, `render` and `ask` are the calls. They are numbered from 0 within a session, under `i`.
  Repeating the last number with the same message returns the stored response: nothing is played twice.
- `blobs` requests bytes of the last response, by their SHA-256. For a client that sets `by_hash` in `open`,
  `$blobs` only contains the hash of arrays and bytes that the server has sent before.
- `close` releases the place.

A response with an `error` has its type, message, hint and field.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tinkergym.basics.user_json import refuse_constant
from tinkergym.errors import InvalidRequestError, TinkerGymError
from tinkergym.serving.wire_values import Blob, Blobs, pack, unpack

VERSION: Final = 1
PATH: Final = "/v1/session"

CALLS: Final = frozenset({"reset", "step", "render", "ask"})
QUESTIONS: Final = frozenset({"gold_action", "legal_actions"})
"""Methods beyond Gymnasium's that an environment may have and `ask` may call."""
MESSAGE_BYTES: Final = 16 * 2**20
"""The default longest message."""

MOST_JSON_CHARACTERS: Final = 2**26
"""Length of the JSON in a message, without the arrays."""
MOST_JSON_VALUES: Final = 2**20
"""Values in that JSON, with strings counted by their commas: each value takes many times its size in the
frame."""

MOST_BLOB_BYTES: Final = 2**28
"""The size of all arrays and bytes in a message, including those named by their hash."""

_LENGTH = struct.Struct("<I")

Message = dict[str, Any]
Frame = str | bytes


def encode(message: Message) -> Frame:
    """Return the frame for a message.

    Raises:
        TypeError: It contains something that cannot be sent.
    """
    blobs: list[Blob] = []
    try:
        packed = {key: pack(value, blobs) for key, value in message.items()}
        if not blobs:
            return _json(packed)
        return join_frame({**packed, "$blobs": [len(blob) for blob in blobs]}, blobs)
    except RecursionError:
        raise TypeError("it is nested too deeply to travel") from None


def join_frame(head: Message, blobs: Sequence[Blob]) -> bytes:
    """Return the binary frame of a message's JSON, including `$blobs`, and its bytes."""
    encoded = _json(head).encode()
    return b"".join((_LENGTH.pack(len(encoded)), encoded, *blobs))


def split_frame(data: bytes) -> tuple[Message, list[Blob]]:
    """Return the JSON of a binary frame, and its bytes.

    Raises:
        ValueError: It is not a valid frame.
        TypeError: Its JSON is not an object.
    """
    try:
        (length,) = _LENGTH.unpack_from(data)
    except struct.error as error:
        raise ValueError(str(error)) from None
    begin = _LENGTH.size + length
    if begin > len(data):
        raise ValueError(f"a head of {length} bytes is announced, but {len(data)} came in all")
    head = _object(bytes(data[_LENGTH.size : begin]).decode())
    entries = head.get("$blobs")
    if not isinstance(entries, list) or not all(
        type(n) is str or (type(n) is int and n >= 0) for n in entries
    ):
        raise ValueError("$blobs must list the lengths of what follows")
    lengths = [n for n in entries if type(n) is int]
    if begin + sum(lengths) != len(data):
        raise ValueError(f"$blobs lists {sum(lengths)} bytes, but {len(data) - begin} follow")
    view = memoryview(data)
    blobs: list[Blob] = []
    for n in lengths:
        blobs.append(view[begin : begin + n])
        begin += n
    return head, blobs


def decode(
    frame: Frame, known: Mapping[str, Blob] | None = None, *, most_blob_bytes: int = MOST_BLOB_BYTES
) -> Message:
    """Return the message in a frame.

    Args:
        frame: The received frame.
        known: Bytes that the frame may refer to by hash.
        most_blob_bytes: The most bytes of its arrays.

    Raises:
        InvalidRequestError: It is not a valid frame, or refers to unknown bytes.
    """
    try:
        if isinstance(frame, str):
            return _decode_text(frame)
        return _decode_binary(frame, known or {}, most_blob_bytes)
    except (ValueError, TypeError, struct.error, RecursionError) as error:
        raise InvalidRequestError(
            f"a frame is not a message of this protocol: {type(error).__name__}: {str(error)[:200]}",
            hint="check that the other side is a tinkergym environment server or client",
        ) from None


def error_message(error: TinkerGymError, *, index: int | None = None) -> Message:
    """Return the response for an error; with an index if it is the response to that call."""
    message: Message = {"error": error.to_wire()}
    retry_after = getattr(error, "retry_after_seconds", None)
    if retry_after is not None:
        message["retry_after_seconds"] = retry_after
    if index is not None:
        message["i"] = index
    return message


def _json(value: Any) -> str:
    # ASCII only, so that even a lone surrogate in a model's answer arrives unchanged.
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _decode_text(text: str) -> Message:
    message = _object(text)
    # Most messages contain nothing written with a `$`.
    return {key: unpack(value, []) for key, value in message.items()} if '"$' in text else message


def _decode_binary(data: bytes, known: Mapping[str, Blob], most_bytes: int) -> Message:
    message, came = split_frame(data)
    parts = iter(came)
    blobs: Blobs = []
    for entry in message.pop("$blobs"):
        if type(entry) is str and entry not in known:
            raise ValueError(f"$blobs names bytes that are not known: {entry[:64]}")
        blobs.append(known[entry] if type(entry) is str else next(parts))
    total = sum(len(blob) for blob in blobs if blob is not None)
    if total > most_bytes:
        # A hash is short, but its bytes are copied wherever it is used.
        raise ValueError(f"its arrays have {total} bytes, and at most {most_bytes} are taken")
    return {key: unpack(value, blobs) for key, value in message.items()}


def _object(text: str) -> Message:
    if len(text) > MOST_JSON_CHARACTERS:
        raise ValueError(
            f"its JSON has {len(text)} characters, more than the limit of {MOST_JSON_CHARACTERS}"
        )
    values = sum(map(text.count, ",[{:"))
    if values > MOST_JSON_VALUES:
        raise ValueError(f"its JSON has about {values} values, more than the limit of {MOST_JSON_VALUES}")
    value = json.loads(text, parse_constant=refuse_constant)
    if not isinstance(value, dict):
        raise TypeError(f"it is a JSON {type(value).__name__}, not an object")
    return value
