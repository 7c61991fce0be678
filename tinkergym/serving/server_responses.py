"""Validation of an environment server's responses, before any of it is used.

The server may be untrusted. Its responses determine what a policy reads and earns, but must not be able to
make the client fail in an arbitrary place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from tinkergym.errors import (
    EnvironmentBusyError,
    InvalidSpaceError,
    RemoteAnswerError,
    TinkerGymError,
    VersionMismatchError,
    from_wire,
)
from tinkergym.serving.wire_protocol import VERSION, Message
from tinkergym.spaces import Text, space_from_json
from tinkergym.user_code.quoting import quoted

MOST_MESSAGE_BYTES = 2**28
"""The longest accepted message, whatever limit the server reports."""
_LONGEST_SECONDS = 1e6
_LARGEST_LIMIT = 2**40
_MOST_TEXT = 50_000
"""Characters of an error's text."""
_LONGEST_RETRY_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a server serves."""

    environment_id: str
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    metadata: dict[str, Any]
    offers: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """A server's description of itself."""

    step_timeout_seconds: float
    max_message_bytes: int


def read_limits(answer: Message) -> ServerLimits:
    """Return the limits in the response to `about` or `open`."""
    seconds = _number(answer, "step_timeout_seconds")
    most = _field(answer, "max_message_bytes", int)
    if not (0 < seconds <= _LONGEST_SECONDS and 0 < most <= _LARGEST_LIMIT):
        raise RemoteAnswerError(
            f"the server reports the invalid limits {seconds:g} s and {quoted(most)} bytes"
        )
    return ServerLimits(step_timeout_seconds=seconds, max_message_bytes=most)


def read_description(answer: Message) -> Description:
    """Return what is served, from the response to `about`.

    Raises:
        VersionMismatchError: The server uses another version of the protocol.
    """
    version = _field(answer, "version", int)
    if version != VERSION:
        raise VersionMismatchError(
            f"the server uses version {version} of the environment protocol, but the client uses version "
            f"{VERSION}",
            hint="install the same release of tinkergym on both sides",
        )
    about = _field(answer, "environment", dict)
    metadata, offers = _field(about, "metadata", dict), _field(about, "offers", list)
    modes = metadata.get("render_modes", [])
    for name, texts in (("offers", offers), ("metadata.render_modes", modes), ("metadata", list(metadata))):
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise RemoteAnswerError(f"{name} must be texts, not {quoted(texts)}")
    try:
        spaces = [
            space_from_json(_field(about, name, dict)) for name in ("observation_space", "action_space")
        ]
    except InvalidSpaceError as error:
        raise RemoteAnswerError(f"a space of the environment is invalid: {error.message}") from None
    return Description(
        environment_id=_field(about, "id", str),
        observation_space=spaces[0],
        action_space=spaces[1],
        metadata=metadata,
        offers=frozenset(offers),
    )


def check_session(answer: Message, session_id: str) -> None:
    """Refuse a response to `open` about another session."""
    if answer.get("session") != session_id:
        raise RemoteAnswerError(f"the response to open names the session {quoted(answer.get('session'))}")


def check_number(answer: Message, index: int) -> None:
    """Refuse a response that is not for call `index`; an error may be about the whole session."""
    number = answer.get("i")
    if type(number) is not int and number is None and "error" in answer:
        return
    if type(number) is not int or number != index:
        raise RemoteAnswerError(f"the response to call {index} has the number {quoted(number)}")


def read_reset(answer: Message, space: gym.Space[Any]) -> tuple[Any, dict[str, Any]]:
    """Return observation and info."""
    return _observation(answer, space), _info(answer)


def read_step(answer: Message, space: gym.Space[Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    """Return the values of `gymnasium.Env.step`."""
    reward = _number(answer, "reward")
    ends = [_field(answer, name, bool) for name in ("terminated", "truncated")]
    return _observation(answer, space), reward, ends[0], ends[1], _info(answer)


def read_question(answer: Message, name: str) -> Any:
    """Return a gold action or the legal actions; both are text."""
    value = _any(answer, "value")
    texts = value if isinstance(value, list) and name == "legal_actions" else [value]
    if value is not None and not all(isinstance(text, str) for text in texts):
        raise RemoteAnswerError(f"{name} must be texts, not {quoted(value)}")
    return value


def read_error(payload: object, retry_after_seconds: object = None) -> TinkerGymError:
    """Return the error in a response; long texts are cut."""
    if not isinstance(payload, Mapping):
        return RemoteAnswerError(f"an error must be an object, not {quoted(payload)}")
    fields = {name: str(payload.get(name, ""))[:_MOST_TEXT] for name in ("type", "message", "hint", "field")}
    error = from_wire(fields)
    if isinstance(error, EnvironmentBusyError):
        seconds = _finite(retry_after_seconds)
        error.retry_after_seconds = (
            1.0 if seconds is None else min(max(seconds, 0.01), _LONGEST_RETRY_SECONDS)
        )
    return error


# --- parts ---


def _any(answer: Message, name: str) -> Any:
    if name not in answer:
        raise RemoteAnswerError(f"a response lacks {name!r}")
    return answer[name]


def _field(answer: Message, name: str, kind: type) -> Any:
    value = _any(answer, name)
    if type(value) is not kind:
        raise RemoteAnswerError(f"{name!r} must be {kind.__name__}, not {quoted(value)}")
    return value


def _number(answer: Message, name: str) -> float:
    value = _finite(_any(answer, name))
    if value is None:
        raise RemoteAnswerError(f"{name!r} must be a finite number, not {quoted(answer[name])}")
    return value


def _finite(value: object) -> float | None:
    if type(value) is not int and type(value) is not float:
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _info(answer: Message) -> dict[str, Any]:
    info: dict[str, Any] = _field(answer, "info", dict)
    return info


def _observation(answer: Message, space: gym.Space[Any]) -> Any:
    value = _any(answer, "observation")
    if not _fits(space, value):
        raise RemoteAnswerError(
            f"the observation {quoted(value)} is not in the environment's space {quoted(space)}",
            hint="fix the environment; EnvContract finds this",
        )
    return value


def _fits(space: gym.Space[Any], value: Any) -> bool:
    """Return whether a value has the space's type and size.

    Numbers may exceed a box's bounds, and text may contain invalid characters, as in a local environment: the
    loop reports these.
    """
    if isinstance(space, gym.spaces.Dict):
        return (
            isinstance(value, dict)
            and value.keys() == space.spaces.keys()
            and all(_fits(inner, value[key]) for key, inner in space.spaces.items())
        )
    if isinstance(space, gym.spaces.Tuple):
        return (
            isinstance(value, tuple)
            and len(value) == len(space.spaces)
            and all(map(_fits, space.spaces, value))
        )
    if isinstance(space, gym.spaces.Box):
        # A box with the shape () may be sampled as a plain number.
        array = isinstance(value, np.ndarray | np.generic)
        return array and value.shape == space.shape and value.dtype.kind == np.dtype(space.dtype).kind
    if isinstance(space, Text | gym.spaces.Text):
        return isinstance(value, str) and len(value) <= space.max_length
    try:
        return bool(space.contains(value))
    except Exception:  # A space's own check, called with an arbitrary value.
        return False
