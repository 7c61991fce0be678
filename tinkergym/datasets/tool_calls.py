"""Tool calls and thoughts in datasets: rendered by the model's own chat template, as answers.

So the policy learns exactly the format of calls and of thoughts that its template uses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tinkergym.agent.image_placeholders import with_marks
from tinkergym.agent.renderer import Renderer
from tinkergym.basics.user_json import read_json
from tinkergym.datasets.conversations import RowFaultError, RowMessage, checked_message
from tinkergym.errors import TemplateError
from tinkergym.messages import Message, assistant, checked_content, is_unicode, plain_text, user

_OPENINGS = ("messages", "prompt")
_FIELDS = (*_OPENINGS, "completion", "chosen", "rejected")
"""The fields of a row with messages, in the order of the conversation."""
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")
"""Keys of thoughts; templates read one or another, so all are given."""
_SPECIAL = ("tool_calls", *_THOUGHTS)


def tools_of(row: Any) -> tuple[Any, list[Any]]:
    """Return a row without its `tools`, and the tools: the functions that the template shows to the model.

    Raises:
        RowFaultError: They are not a list of objects, or JSON of one.
    """
    if not isinstance(row, Mapping) or not row.get("tools"):
        kept = {k: v for k, v in row.items() if k != "tools"} if isinstance(row, Mapping) else row
        return kept, []
    tools = row["tools"]
    if isinstance(tools, str):
        tools = _loaded(tools, "tools")
    if not isinstance(tools, list) or not all(isinstance(one, Mapping) for one in tools):
        raise RowFaultError("tools: must be a list of objects, as in OpenAI's API")
    refuse_beyond_json(tools, "tools")
    return {name: value for name, value in row.items() if name != "tools"}, tools


def refuse_beyond_json(value: Any, where: str) -> None:
    """Refuse what JSON cannot hold, such as dates, bytes, NaN and halves of surrogate pairs.

    Raises:
        RowFaultError: With the place of such a value.
    """
    if isinstance(value, Mapping):
        for key, one in value.items():
            refuse_beyond_json(key, where)
            refuse_beyond_json(one, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for place, one in enumerate(value):
            refuse_beyond_json(one, f"{where}[{place}]")
    elif isinstance(value, str):
        if not is_unicode(value):
            raise RowFaultError(f"{where!r}: contains half of a surrogate pair")
    elif isinstance(value, float) and not math.isfinite(value):
        raise RowFaultError(f"{where}: is {value}, which JSON cannot hold")
    elif not isinstance(value, bool | int | float | None):
        raise RowFaultError(f"{where}: JSON cannot hold a {type(value).__name__}; write it as text")


def calls_as_text(renderer: Renderer, row: Any) -> Any:
    """Return a row whose assistant messages contain the text of their `tool_calls` and thoughts.

    Raises:
        RowFaultError: A message is not valid, or a call is not in the format of OpenAI's API.
        TemplateError: The model's template does not show them, or refuses the conversation before one.
    """
    if not isinstance(row, Mapping) or not any(_needs_template(row.get(name)) for name in _FIELDS):
        return row
    written: dict[str, Any] = dict(row)
    before: list[Message] = []
    for name in _FIELDS:
        given = row.get(name)
        if name == "prompt" and isinstance(given, str):
            before = [user(given)]
        elif isinstance(given, list | tuple):
            written[name] = _spoken(renderer, before, given, name)
            if name in _OPENINGS:
                before = written[name]
    return written


def _spoken(
    renderer: Renderer, before: Sequence[Message], messages: Sequence[Any], field: str
) -> list[Message]:
    """Return messages in which calls are text.

    Args:
        renderer: The model's renderer.
        before: The conversation before them.
        messages: The messages.
        field: Their field, for errors.
    """
    spoken: list[Message] = []
    shown = [_in_one_string(renderer, message) for message in before]
    for place, message in enumerate(messages):
        where = f"{field}[{place}]"
        text = _as_text(renderer, shown, message, where) if _is_special(message) else message
        spoken.append(checked_message(text, where))
        shown.append(_in_one_string(renderer, spoken[-1]))
    return spoken


def _as_text(
    renderer: Renderer, shown: Sequence[Message], message: Mapping[str, Any], where: str
) -> Mapping[str, Any]:
    """Return a message whose content is what the template writes for it."""
    if message.get("role") != "assistant":
        what = (
            "tool_calls: only the assistant calls tools"
            if _calls(message)
            else "role: only answers have thoughts"
        )
        raise RowFaultError(f"{where}.{what}")
    thoughts = _thoughts(message, where)
    without = {name: value for name, value in message.items() if name not in _SPECIAL}
    without["content"] = _content(message.get("content"), where)
    # An unknown key is refused here as on every other message: it may be a misspelled `weight`.
    checked_message({name: value for name, value in without.items() if name != "weight"}, where)
    calls = _read(message["tool_calls"], f"{where}.tool_calls") if _calls(message) else []
    _refuse_ends(renderer, [without["content"], thoughts, calls], where)
    given = {
        **without,
        **({"tool_calls": calls} if calls else {}),
        **dict.fromkeys(_THOUGHTS if thoughts else (), thoughts),
    }
    weight = {"weight": given.pop("weight")} if "weight" in given else {}
    without.pop("weight", None)
    if not thoughts:
        return {**assistant(_answer(renderer, shown, given, without, f"{where}.tool_calls")), **weight}
    if not calls and not without["content"]:
        raise RowFaultError(
            f"{where}.content: empty after the thoughts, so the policy would learn not to answer"
        )
    name = next(name for name in _THOUGHTS if message.get(name))
    text = _thought_out(renderer, shown, given, without, f"{where}.{name}")
    return {**assistant(text), "written": given, **weight}


def _thought_out(
    renderer: Renderer,
    shown: Sequence[Message],
    given: Mapping[str, Any],
    without: Mapping[str, Any],
    where: str,
) -> str:
    """Return an answer with its thoughts."""
    thoughts = given[_THOUGHTS[0]]
    silent = {name: value for name, value in given.items() if name not in _THOUGHTS}
    try:
        return _answer(renderer, shown, given, silent, where)
    except TemplateError:
        if not renderer.opens_reasoning:
            raise
    # The prompt opens the thought, and the template takes it from the content.
    text = (
        _answer(renderer, shown, silent, without, where) if silent.get("tool_calls") else without["content"]
    )
    return f"<think>\n{thoughts}\n</think>\n\n{text}"


def _thoughts(message: Mapping[str, Any], where: str) -> str:
    found = [(name, message[name]) for name in _THOUGHTS if message.get(name) is not None]
    for name, text in found:
        if not isinstance(text, str) or not is_unicode(text):
            raise RowFaultError(f"{where}.{name}: must be a string of Unicode, not {type(text).__name__}")
        if text != found[0][1]:
            raise RowFaultError(f"{where}.{name}: differs from {found[0][0]}")
    return found[0][1] if found else ""


def _refuse_ends(renderer: Renderer, texts: Any, where: str) -> None:
    """Refuse texts in which the template's text would seem to end."""
    written = json.dumps(texts, ensure_ascii=False)
    for token in renderer.stop_ids:
        if (end := renderer.decode([token])) and json.dumps(end, ensure_ascii=False)[1:-1] in written:
            raise RowFaultError(f"{where}: contains the text of a token that ends answers; remove it")


def _in_one_string(renderer: Renderer, given: Message) -> Message:
    row: RowMessage = given  # type: ignore[assignment]
    message: Message = row.get("written") or given
    if renderer.images is None:
        return {**message, "content": plain_text(message)}
    return with_marks(message)


def _answer(
    renderer: Renderer,
    before: Sequence[Message],
    given: Mapping[str, Any],
    without: Mapping[str, Any],
    where: str,
) -> str:
    """Return what the template writes for a message.

    Args:
        renderer: The model's renderer.
        before: The messages before it.
        given: The message.
        without: The message without the part that the template must show.
        where: That part, for errors.
    """
    text = renderer.answer_text(before, given)
    try:
        left_out = text == renderer.answer_text(before, without)
    except TemplateError:  # It writes nothing for the text alone.
        left_out = False
    if left_out:
        raise TemplateError(f"the chat template leaves out {where}")
    return text


def _content(given: Any, where: str) -> str:
    """Return the text next to calls."""
    if isinstance(given, list | tuple):
        try:
            given = checked_content(given, where)
        except ValueError as error:
            raise RowFaultError(str(error)) from error
    if given is not None and not isinstance(given, str):
        raise RowFaultError(f"{where}.content: must be text or null next to tool_calls")
    return given or ""


def _needs_template(messages: Any) -> bool:
    return isinstance(messages, list | tuple) and any(map(_is_special, messages))


def _is_special(message: Any) -> bool:
    """Whether only the template knows how a message is written."""
    return isinstance(message, Mapping) and any(message.get(name) for name in _SPECIAL)


def _calls(message: Any) -> bool:
    return isinstance(message, Mapping) and bool(message.get("tool_calls"))


def _read(calls: Any, where: str) -> Sequence[dict[str, Any]]:
    if not isinstance(calls, list | tuple):
        raise RowFaultError(f"{where}: must be a list, not {type(calls).__name__}")
    return [_call(call, f"{where}[{number}]") for number, call in enumerate(calls)]


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RowFaultError(f"{where}: must be an object with a function that has a name and arguments")
    refuse_beyond_json(call, where)
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        # OpenAI's API uses JSON in a string; templates need the object.
        arguments = _loaded(arguments or "{}", f"{where}.function.arguments")
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, Mapping):
        raise RowFaultError(f"{where}.function.arguments: must be an object, or JSON of one")
    return {**call, "type": "function", "function": {**function, "arguments": dict(arguments)}}


def _loaded(text: str, where: str) -> Any:
    try:
        return read_json(text)
    except (ValueError, RecursionError) as error:
        raise RowFaultError(f"{where}: not valid JSON: {error}") from None
