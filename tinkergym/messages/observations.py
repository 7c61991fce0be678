"""How observations of environments become messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinkergym.messages.checking import checked_messages, is_unicode
from tinkergym.messages.image_parts import image_part, images_of, is_image, shows_images
from tinkergym.messages.message import Message, messages_text, user
from tinkergym.trajectory.content_parts import TextPart
from tinkergym.user_code.quoting import quoted, type_in_words

NOT_IN_WORDS = (
    "return text, or a mapping with text under 'text'; or convert it to text with "
    "tinkergym.wrappers.Verbalize or, in your own loop, TrainRemotely"
)
"""The hint for an environment that shows no text, as most of Gymnasium's own."""

_MAPPINGS = (dict, Mapping)
"""Most are dicts, and `isinstance(value, Mapping)` takes ten times as long."""

Observation = str | Mapping[str, Any] | Sequence[Message]
"""An observation that a policy can act on; see `observation_messages`."""


def observation_messages(observation: object) -> list[Message]:
    """Return the messages that an observation adds to the conversation.

    A string becomes one user message, and so does the string under `text` of a mapping. A list, or the list
    under `messages` of a mapping, is taken as it is: the messages since the last action. In a mapping with
    both, the messages come first. Images under `image` and `images` of a mapping come before its text; a
    single image is a message, too. Other keys of a mapping are not shown to the model.

    Args:
        observation: What `reset` or `step` returned.

    Returns:
        New dicts; empty only if the observation is an empty list of messages.

    Raises:
        TypeError: It is none of these.
        ValueError: A text holds a lone surrogate, which neither JSON nor a tokenizer can carry.
        UnsupportedPartError: It has an image in an unsupported place.
        InvalidImageError: An image is broken, animated or too large.
    """
    text = _one_text(observation)
    if text is not None:
        return [user(text)]
    if isinstance(observation, Mapping):
        images = images_of(observation)
        messages = []
        if observation.get("messages") is not None:
            messages = checked_messages(observation["messages"], "the observation's 'messages'")
        silent = observation.get("text") is None or observation["text"] == ""
        if silent is not True:
            text = _text(observation["text"], observation)
            return [
                *messages,
                {"role": "user", "content": [*images, TextPart(text=text)] if images else text},
            ]
        return [*messages, {"role": "user", "content": [*images]}] if images else messages
    if isinstance(observation, list | tuple):
        return checked_messages(observation, "the observation")
    if is_image(observation):
        return [{"role": "user", "content": [image_part(observation, "the observation")]}]
    raise _neither_text_nor_messages(observation)


def messages_to_answer(observation: object) -> list[Message]:
    """Return `observation_messages` of an observation that the policy will answer.

    Raises:
        TypeError: As there.
        ValueError: As there, or it is an empty list of messages, which is allowed only at the end of an
            episode.
    """
    messages = observation_messages(observation)
    if not messages:
        raise ValueError(
            "the observation is an empty list of messages, so there is nothing for the policy to answer"
        )
    return messages


def observation_text(observation: object) -> str:
    """Return an observation as one text, for transcripts: `messages_text` of `observation_messages`.

    Raises:
        TypeError: It is neither text nor messages.
        ValueError: A text holds a lone surrogate, which neither JSON nor a tokenizer can carry.
        UnsupportedPartError: It has an image in an unsupported place.
    """
    text = _one_text(observation)
    return messages_text(observation_messages(observation)) if text is None else text


def _one_text(observation: object) -> str | None:
    """Return the text of an observation that is one user message, as most are; None for any other."""
    if isinstance(observation, str):
        return _text(observation)
    if not isinstance(observation, _MAPPINGS):
        return None
    if shows_images(observation) or observation.get("messages") is not None:
        return None
    return _text(observation.get("text"), observation)


def _text(text: object, observation: object = None) -> str:
    if not isinstance(text, str):
        raise _neither_text_nor_messages(observation)
    if not is_unicode(text):
        raise ValueError(
            f"the observation contains a lone surrogate, which is not valid Unicode text: {text[:200]!a}"
        )
    # Subclasses of str (numpy has one) would surprise JSON encoders later.
    return text if type(text) is str else str(text)


def _neither_text_nor_messages(observation: object) -> TypeError:
    return TypeError(
        f"an observation must be a str, a mapping with a str under 'text', or a list of messages, not "
        f"{type_in_words(observation)}" + ("" if observation is None else f": {quoted(observation)}")
    )
