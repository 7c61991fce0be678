"""Messages as other tools write them: other names of roles, legacy function calls, speakers, marked texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tinkergym.basics.user_json import read_json
from tinkergym.datasets.conversations import RowFaultError
from tinkergym.user_code.quoting import quoted

_SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_call": "assistant",
}
"""ShareGPT's roles, by the value of `from`."""

_ROLES = {"developer": "system", "function": "tool"}
"""Roles of OpenAI's API, as chat templates call them."""

_OF_ANSWERS = ("annotations", "audio", "refusal")
"""Keys that OpenAI's API adds to answers, mostly empty. A refusal stands in place of the content."""

_TURN = re.compile(r"\n\n(Human|Assistant):")


def in_our_roles(value: Any, field: str) -> Any:
    """Return messages with our roles, and with `tool_calls` in place of the legacy `function_call`."""
    if not isinstance(value, list | tuple):
        return value
    return [_in_our_role(message, f"{field}[{place}]") for place, message in enumerate(value)]


def _in_our_role(message: Any, where: str) -> Any:
    if not isinstance(message, Mapping):
        return message
    ours = dict(message)
    role = ours.get("role")
    if isinstance(role, str) and role in _ROLES:
        ours["role"] = _ROLES[role]
    for name in _OF_ANSWERS:
        if not ours.get(name):
            ours.pop(name, None)
    if isinstance(ours.get("refusal"), str) and not ours.get("content"):
        ours["content"] = ours.pop("refusal")
    if "function_call" in ours:
        if ours.get("tool_calls"):
            raise RowFaultError(f"{where}.function_call: cannot be combined with tool_calls")
        ours["tool_calls"] = [{"type": "function", "function": ours.pop("function_call")}]
    return ours


def read_list(value: Any, field: str) -> Any:
    """Return a list, which some files hold as JSON in a string."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        return read_json(value)
    except (ValueError, RecursionError) as error:
        by_python = "; Python wrote it: use json.dumps" if value.lstrip().startswith("[{'") else ""
        raise RowFaultError(f"{field}: not valid JSON: {error}{by_python}") from None


def of_sharegpt(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of ShareGPT with `messages`.

    Raises:
        RowFaultError: A message is invalid.
    """
    said = read_list(row["conversations"], "conversations")
    if not isinstance(said, list | tuple):
        raise RowFaultError(f"conversations: must be a list, not {type(said).__name__}")
    messages = [of_speaker(one, f"conversations[{place}]") for place, one in enumerate(said)]
    ours = {name: value for name, value in row.items() if name not in {"conversations", "system"}}
    if row.get("system"):
        messages = [{"role": "system", "content": row["system"]}, *messages]
    for name in ("chosen", "rejected"):
        if isinstance(ours.get(name), Mapping):
            ours[name] = of_speaker(ours[name], name)["content"]
    return {**ours, "messages": messages}


def of_speaker(one: Any, where: str) -> dict[str, Any]:
    """Return a message of ShareGPT as ours.

    Raises:
        RowFaultError: It is none, or its speaker is not known.
    """
    if isinstance(one, Mapping) and {"role", "content"} <= one.keys():
        return dict(one)
    if not isinstance(one, Mapping) or not {"from", "value"} <= one.keys():
        raise RowFaultError(f"{where}: must be an object with from and value")
    if not isinstance(one["from"], str) or one["from"] not in _SPEAKERS:
        known = ", ".join(_SPEAKERS)
        raise RowFaultError(f"{where}.from: must be one of {known}, not {quoted(one['from'], 60)!a}")
    others = {key: value for key, value in one.items() if key not in ("from", "value")}
    if one["from"] == "function_call":
        return {"role": "assistant", "content": "", "tool_calls": _calls(one["value"], where), **others}
    return {"role": _SPEAKERS[one["from"]], "content": one["value"], **others}


def _calls(value: Any, where: str) -> list[dict[str, Any]]:
    """Return the calls that a turn of ShareGPT holds as JSON."""
    try:
        found = read_json(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise RowFaultError(f"{where}.value: not valid JSON: {error}") from None
    return [{"type": "function", "function": one} for one in (found if isinstance(found, list) else [found])]


def is_marked_text(value: Any) -> bool:
    """Whether a text is a conversation in the marks of hh-rlhf."""
    return isinstance(value, str) and value.lstrip().startswith("Human:") and "\n\nAssistant:" in value


def of_marked_text(text: str) -> list[dict[str, Any]]:
    """Return the messages of a text in which each turn begins with `Human:` or `Assistant:`."""
    _, *turns = _TURN.split("\n\n" + text.lstrip())
    roles = {"Human": "user", "Assistant": "assistant"}
    return [
        {"role": roles[who], "content": said.strip()}
        for who, said in zip(turns[::2], turns[1::2], strict=True)
    ]
