"""A policy's text as one of AndroidWorld's JSON actions.

All mistakes of a policy are found here, before the device is used: what the device then cannot do is the
device's failure, not the policy's.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from tinkergym.messages import is_unicode
from tinkergym_androidworld.phone import State

PROMPT = """You operate an Android phone. Answer with one action as a JSON object:
{"action_type": "click", "index": 3} (also double_tap and long_press; "x" and "y" in place of "index")
{"action_type": "input_text", "text": "...", "index": 3}
{"action_type": "scroll", "direction": "down"} (up, down, left or right; "index" names what is scrolled)
{"action_type": "swipe", "direction": "down"}
{"action_type": "open_app", "app_name": "..."}
{"action_type": "navigate_back"}, {"action_type": "navigate_home"}, {"action_type": "keyboard_enter"}, \
{"action_type": "wait"}
{"action_type": "answer", "text": "..."} if the goal is a question
{"action_type": "status", "goal_status": "complete"} when the goal is reached, "infeasible" if it cannot be"""

FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "click": ((), ("index", "x", "y")),
    "double_tap": ((), ("index", "x", "y")),
    "long_press": ((), ("index", "x", "y")),
    "input_text": (("text",), ("index", "x", "y", "clear_text")),
    "scroll": (("direction",), ("index",)),
    "swipe": (("direction",), ()),
    "open_app": (("app_name",), ()),
    "navigate_back": ((), ()),
    "navigate_home": ((), ()),
    "keyboard_enter": ((), ()),
    "wait": ((), ()),
    "answer": (("text",), ()),
    "status": (("goal_status",), ()),
}
"""By action: its required and optional fields."""

_POINTED = ("click", "double_tap", "long_press")
_CHOICES = {
    "direction": ("up", "down", "left", "right"),
    "goal_status": ("complete", "infeasible"),
}
_TEXTS = ("text", "app_name")
# AndroidWorld passes a name that it does not know to a shell of the device.
_APP_NAME = re.compile(r"[\w .:+-]+")
_MOST_CHARACTERS = 4_000
"""Characters read from the end of a policy's text."""
_DECODER = json.JSONDecoder()


class MalformedActionError(Exception):
    """A text is not an action that is possible here; the message tells the policy why."""


def read_action(text: str, state: State, screen_size: tuple[int, int]) -> dict[str, Any]:
    """Return the fields of the action at the end of a text; anything before it is ignored.

    Args:
        text: Any text.
        state: The device's state, with the elements that can be named.
        screen_size: Width and height in pixels.

    Raises:
        MalformedActionError: There is no action, or it is not possible.
    """
    fields = _last_object(text)
    kind = fields.get("action_type")
    if not isinstance(kind, str) or kind not in FIELDS:
        raise MalformedActionError(f'"action_type" must be one of {", ".join(FIELDS)}.')
    needed, allowed = FIELDS[kind]
    for name in needed:
        if name not in fields:
            raise MalformedActionError(f'{kind} needs "{name}".')
    for name, value in fields.items():
        if name not in ("action_type", *needed, *allowed):
            raise MalformedActionError(f'{kind} has no "{name}".')
        _check(name, value, state, screen_size)
    _check_place(kind, fields)
    return fields


def _last_object(text: str) -> dict[str, Any]:
    """Return the last JSON object of a text that is not part of another one."""
    text = text[-_MOST_CHARACTERS:]
    found: dict[str, Any] | None = None
    problem = "Answer with an action as a JSON object."
    position = text.find("{")
    while position >= 0:
        try:
            value, position = _DECODER.raw_decode(text, position)
            found = dict(value)
        except (ValueError, RecursionError) as error:
            problem = f"The JSON object cannot be read: {error}."
            position += 1
        position = text.find("{", position)
    if found is None:
        raise MalformedActionError(problem)
    return found


def _check(name: str, value: object, state: State, screen_size: tuple[int, int]) -> None:
    if name == "index":
        count = len(state.ui_elements)
        if not _is_whole(value, count):
            raise MalformedActionError(f'"index" must be a number from 0 to {count - 1}.')
        if getattr(state.ui_elements[int(str(value))], "bbox_pixels", None) is None:
            raise MalformedActionError("That element has no place on the screen.")
    elif name in ("x", "y"):
        size = screen_size[name == "y"]
        if not _is_whole(value, size):
            raise MalformedActionError(f'"{name}" must be a number from 0 to {size - 1}.')
    elif name in _CHOICES and value not in _CHOICES[name]:
        raise MalformedActionError(f'"{name}" must be one of {", ".join(_CHOICES[name])}.')
    elif name in _TEXTS and not (isinstance(value, str) and value):
        raise MalformedActionError(f'"{name}" must be a text.')
    elif name in _TEXTS and not _is_writable(str(value)):
        raise MalformedActionError(f'"{name}" must not contain control characters.')
    elif name == "app_name" and not _APP_NAME.fullmatch(str(value)):
        raise MalformedActionError('"app_name" must be the name of an app.')
    elif name == "clear_text" and not isinstance(value, bool):
        raise MalformedActionError('"clear_text" must be true or false.')


def _is_writable(text: str) -> bool:
    """Whether a device takes a text: surrogates and control characters but newlines break its tools."""
    return is_unicode(text) and all(unicodedata.category(sign) != "Cc" or sign == "\n" for sign in text)


def _is_whole(value: object, end: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < end


def _check_place(kind: str, fields: Mapping[str, Any]) -> None:
    """Check for an element or a complete point, but not both."""
    point = "x" in fields, "y" in fields
    if point[0] != point[1] or (point[0] and "index" in fields):
        raise MalformedActionError(f'{kind} takes either "index", or "x" and "y".')
    if kind in _POINTED and not point[0] and "index" not in fields:
        raise MalformedActionError(f'{kind} needs "index", or "x" and "y".')
