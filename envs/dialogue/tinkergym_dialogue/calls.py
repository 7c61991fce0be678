"""How an agent writes its tool calls: as plain words out of a list, or in a syntax that models know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from tinkergym.games.illegal import read_legal
from tinkergym.tool_calls.call import MalformedCall, ToolCall
from tinkergym.tool_calls.syntax import Syntax, render_result
from tinkergym.tools import describe_tools, parse_calls, render_calls
from tinkergym_dialogue.shop import Shop

Calls = Literal["words", "hermes", "xml", "json"]
CALLS = get_args(Calls)

TOOLS = {"look": "list_orders", "drop": "cancel_order", "take": "return_order"}
"""The tools by the word that calls them; the words are ones that small models know."""

RULES = (
    "You work for a shop. A customer does not want one of their orders any more. If it is open, cancel it; "
    "if it is closed, take it back. Find out which order it is and whether it is open. Change no "
    "other order. Say goodbye when it is done."
)


def call_of(tool: str, item: str = "") -> ToolCall:
    """Return a call of a tool by its word."""
    return ToolCall(TOOLS[tool], {"item": item} if item else {})


def written(tool: str, item: str, calls: Calls) -> str:
    """Return how a call is written."""
    if calls == "words":
        return f"{tool} {item}".strip()
    return render_calls([call_of(tool, item)], calls)


def read(text: str, items: Sequence[str], calls: Calls) -> list[ToolCall | MalformedCall]:
    """Return the calls of an answer; none if it is said to the customer."""
    if calls != "words":
        return parse_calls(text, calls)
    offered = {"look": call_of("look")}
    offered |= {f"{word} {item}": call_of(word, item) for word in ("drop", "take") for item in items}
    found = read_legal(text, list(offered))
    return [] if found is None else [offered[found]]


def shown(name: str, text: str, calls: Calls) -> str:
    """Return how a call's result is shown."""
    return text if calls == "words" else render_result(name, text, calls)


def prompt(calls: Calls, instructions: bool) -> str:
    """Return what the agent is told before the dialogue; in plain words nothing, unless it is asked for."""
    if calls != "words":
        syntax: Syntax = calls
        tools = [Shop.list_orders, Shop.cancel_order, Shop.return_order]
        said = "An answer without a call is said to the customer."
        return f"{RULES}\n\n{describe_tools(tools, syntax, without_call=said)}"
    if not instructions:
        return ""
    return f"{RULES} Commands: look shows the orders, drop cancels one, take takes one back."
