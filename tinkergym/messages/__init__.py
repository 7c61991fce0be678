"""Messages of a conversation, and how observations become messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict, get_args

from tinkergym.errors import ImageObservationError, InvalidImageError, UnsupportedPartError
from tinkergym.images.files import image_file
from tinkergym.trajectory.parts import (
    Content,
    ImagePart,
    Part,
    TextPart,
    content_of,
    content_text,
    other_than_text,
)
from tinkergym.user_code.quoting import quoted, type_in_words

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = get_args(Role)

NOT_IN_WORDS = (
    "return text, or a mapping with text under 'text'; or convert it to text with "
    "tinkergym.wrappers.Verbalize or, in your own loop, TrainRemotely"
)
"""The hint for an environment that shows no text, as most of Gymnasium's own."""

MOST_NAME_CHARACTERS = 256
"""The longest `name` and `tool_call_id` of a message."""
_OPTIONAL = ("name", "tool_call_id")
_OF_ONE_ROLE = {"tool_calls": "assistant", "tools": "system"}
_IMAGE_KEYS = ("image", "images")
_MAPPINGS = (dict, Mapping)
"""Most are dicts, and `isinstance(value, Mapping)` takes ten times as long."""


class Message(TypedDict):
    """One message of a conversation."""

    role: Role
    content: Content
    name: NotRequired[str]
    """The speaker, or the tool that answered; not every chat template shows it."""
    tool_call_id: NotRequired[str]
    """The call that a `tool` message answers."""
    tool_calls: NotRequired[list[dict[str, Any]]]
    """For the assistant: calls in the format of OpenAI's API, for the model's own chat template."""
    tools: NotRequired[list[dict[str, Any]]]
    """For the system: functions, as JSON Schema, offered by the model's own chat template."""


Observation = str | Mapping[str, Any] | Sequence[Message]
"""An observation that a policy can act on; see `observation_messages`."""


def system(content: str) -> Message:
    """Return a system message."""
    return {"role": "system", "content": content}


def user(content: str) -> Message:
    """Return a user message, as environments send."""
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    """Return an assistant message, as policies send."""
    return {"role": "assistant", "content": content}


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
        ImageObservationError: It has an image in an unsupported place.
        InvalidImageError: An image is broken, animated or too large.
    """
    text = _one_text(observation)
    if text is not None:
        return [user(text)]
    if isinstance(observation, Mapping):
        images = _images(observation)
        messages = []
        if observation.get("messages") is not None:
            messages = _checked(observation["messages"], "the observation's 'messages'")
        silent = observation.get("text") is None or observation["text"] == ""
        if silent is not True:
            text = _text(observation["text"], observation)
            return [
                *messages,
                {"role": "user", "content": [*images, TextPart(text=text)] if images else text},
            ]
        return [*messages, {"role": "user", "content": [*images]}] if images else messages
    if isinstance(observation, list | tuple):
        return _checked(observation, "the observation")
    if _is_image(observation):
        return [{"role": "user", "content": [_image_part(observation, "the observation")]}]
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
        ImageObservationError: It has an image in an unsupported place.
    """
    text = _one_text(observation)
    return messages_text(observation_messages(observation)) if text is None else text


def messages_text(messages: Sequence[Message]) -> str:
    """Return messages as readable text: user messages as they are, others under their roles."""
    if len(messages) == 1 and messages[0]["role"] == "user":
        return content_text(messages[0]["content"])
    return "\n\n".join(f"[{message['role']}]\n{content_text(message['content'])}" for message in messages)


def plain_text(message: Message) -> str:
    """Return the content of a message that is only text.

    Raises:
        UnsupportedPartError: It has another part.
    """
    content = message["content"]
    if isinstance(content, str):
        return content
    kind = other_than_text(content)
    if kind == "image":
        raise ImageObservationError(
            f"a message of the {message['role']} contains an image, but this model supports only text",
            field="content",
        )
    if kind:
        raise UnsupportedPartError(
            f"a message of the {message['role']} contains a part of type {kind!r}, but this model supports "
            f"only text",
            hint="convert it to text",
            field="content",
        )
    return content_text(content)


def opening_messages(
    messages: Sequence[Message], *, job_prompt: str | None, environment_prompt: str | None
) -> list[Message]:
    """Return the first messages of an episode, with the effective system prompt first.

    The job's prompt replaces the environment's, and `""` removes it. The environment's prompt is the system
    message at the start of its first observation, else the one in its metadata.
    """
    own = 0
    while own < len(messages) and messages[own]["role"] == "system":
        own += 1
    if job_prompt is not None:
        messages, prompt = messages[own:], job_prompt
    else:
        prompt = "" if own else environment_prompt or ""
    return [system(prompt), *messages] if prompt else list(messages)


def checked_content(values: Sequence[Any], where: str) -> Content:
    """Return a message's content that is given as a list of parts. Images are read and checked.

    Raises:
        ImageObservationError: An image is given in an unsupported form.
        InvalidImageError: An image is broken, animated or too large.
        ValueError: It is not a list of parts.
    """
    return _parts(values, where)


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


def is_unicode(text: str) -> bool:
    """Whether the string is Unicode text without lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _one_text(observation: object) -> str | None:
    """Return the text of an observation that is one user message, as most are; None for any other."""
    if isinstance(observation, str):
        return _text(observation)
    if not isinstance(observation, _MAPPINGS):
        return None
    if _shows_images(observation) or observation.get("messages") is not None:
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


def _checked(values: Any, where: str) -> list[Message]:
    if not isinstance(values, list | tuple):
        raise TypeError(f"{where} must be a list of messages, not {type_in_words(values)}")
    return [_message(value, f"{where}[{index}]") for index, value in enumerate(values)]


def _message(value: Any, where: str) -> Message:
    """Return a copy with plain strings, so later changes by the environment have no effect here."""
    parts: Content = ""
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
    except (ImageObservationError, InvalidImageError):
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
        return _image_part(value["image"], f"{where}['content']")
    if value.get("type") == "image" and "sha256" in value:
        return value
    raise ImageObservationError(
        f"{where}['content'] contains an image in an unsupported form",
        hint="write {'type': 'image', 'image': pixels, a Pillow image, or the bytes of a file}",
    )


def _shows_images(observation: Mapping[Any, Any]) -> bool:
    """Whether there are images to show.

    Raises:
        ImageObservationError: An image is under a key that is not supported.
    """
    found = False
    for key, value in observation.items():
        if key in _IMAGE_KEYS:
            found = found or not _is_empty(value)
        elif _is_image(value):
            raise ImageObservationError(
                f"the observation has an image under {quoted(key)!r}",
                hint="put it under 'image' for the model to see it, or leave it out",
            )
    return found


def _images(observation: Mapping[Any, Any]) -> list[Part]:
    images = [] if _is_empty(observation.get("image")) else [observation["image"]]
    if not _is_empty(observation.get("images")):
        several = observation["images"]
        # Both a tuple space and a stack of pictures.
        stacked = len(getattr(several, "shape", ())) == 4
        if not stacked and not isinstance(several, list | tuple):
            raise InvalidImageError(
                f"the observation's 'images' must be a list of images, not {type_in_words(several)}"
            )
        images += list(several)
    return [_image_part(image, f"image {number} of the observation") for number, image in enumerate(images)]


def _image_part(image: Any, where: str) -> ImagePart:
    if isinstance(image, ImagePart):
        return image
    try:
        return ImagePart.of(image_file(image))
    except InvalidImageError as error:
        raise InvalidImageError(f"{where}: {error.message}", hint=error.hint) from error


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, str | bytes | Sequence) and len(value) == 0)


def _is_image(value: Any) -> bool:
    """Whether a value is pixels: unsigned bytes in rows and columns of 1, 3 or 4 channels."""
    if isinstance(value, str | tuple | list):
        return False
    shape: Any = getattr(value, "shape", ())
    return len(shape) == 3 and shape[2] in (1, 3, 4) and str(getattr(value, "dtype", "")) == "uint8"
