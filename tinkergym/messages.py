"""Messages: the form in which text goes into a chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from tinkergym.quoting import quoted

Role = Literal["system", "user", "assistant", "tool"]

NOT_IN_WORDS = (
    "show text, or a mapping with text under 'text'; "
    "or put each observation into words in a loop of your own, with tinkergym.wrappers.TrainRemotely"
)
"""What to do with an environment that shows no text, as most of Gymnasium's own."""


class Message(TypedDict):
    """One message of a conversation."""

    role: Role
    content: str


def system(content: str) -> Message:
    """Return a message that sets the frame of the conversation."""
    return {"role": "system", "content": content}


def user(content: str) -> Message:
    """Return a message from the environment."""
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    """Return a message from the policy."""
    return {"role": "assistant", "content": content}


def observation_text(observation: object) -> str:
    """Return the text of an observation: a string, or a mapping with a string under `text`.

    Raises:
        TypeError: It is neither.
        ValueError: The text holds a lone surrogate, which neither JSON nor a tokenizer can carry.
    """
    text: Any = observation.get("text") if isinstance(observation, Mapping) else observation
    if not isinstance(text, str):
        raise TypeError(
            "an observation must be a str, or a mapping with a str under 'text', "
            f"but it is {type(observation).__name__}: {quoted(observation)}"
        )
    if not is_unicode(text):
        raise ValueError(f"the observation holds a lone surrogate, which is no Unicode text: {text[:200]!a}")
    # Sub-classes of str (numpy has one) would surprise JSON encoders further on.
    return text if type(text) is str else str(text)


def is_unicode(text: str) -> bool:
    """Whether the string is Unicode text, free of lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
