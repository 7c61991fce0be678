"""Variables of a chat template, such as `enable_thinking`: which it uses, and which date it writes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time
from typing import Any

import jinja2
from jinja2 import nodes

from tinkergym.errors import TemplateError
from tinkergym.schema.chat_templates import RESERVED_VARIABLES

_LONGEST_DATE = 200
"""Characters of a format; a date has at most 256 times as many."""
_MOST_SHOWN = 10


def names_read(environment: jinja2.Environment, source: str) -> frozenset[str]:
    """Return the names that a template reads before it sets them itself.

    Args:
        environment: The dialect.
        source: A template that compiles.
    """
    parsed = environment.parse(source)
    own = {one.name for one in parsed.find_all(nodes.Macro)} | {
        one.name for one in _outside_macros(parsed) if one.ctx == "store"
    }
    return frozenset(_free(parsed, set(environment.globals), own)) - RESERVED_VARIABLES


def _outside_macros(node: nodes.Node) -> Iterator[nodes.Name]:
    for child in node.iter_child_nodes():
        if isinstance(child, nodes.Name):
            yield child
        # Their names are their own, and so are those of a loop.
        if not isinstance(child, nodes.Macro | nodes.CallBlock | nodes.For):
            yield from _outside_macros(child)


def _free(node: nodes.Node, bound: set[str], own: set[str]) -> Iterator[str]:
    """Yield the names that a part reads and nothing before it sets; what it sets is added to `bound`.

    Args:
        node: The part.
        bound: What is set where it begins: parameters of macros, targets of loops, and assignments so far.
        own: What the template sets itself at some time: a macro is called after that.
    """
    if isinstance(node, nodes.Name):
        if node.ctx == "load" and node.name not in bound:
            yield node.name
        elif node.ctx != "load":
            bound.add(node.name)
    elif isinstance(node, nodes.For):
        yield from _free(node.iter, bound, own)
        inside = bound | {"loop"}
        yield from _all_free([node.target, *filter(None, [node.test]), *node.body], inside, own)
        yield from _all_free(node.else_, set(bound), own)
    elif isinstance(node, nodes.Macro | nodes.CallBlock):
        yield from _free(node.call, bound, own) if isinstance(node, nodes.CallBlock) else ()
        if isinstance(node, nodes.Macro):
            bound.add(node.name)
        inside = bound | {"caller", "varargs", "kwargs"} | (own if isinstance(node, nodes.Macro) else set())
        yield from _all_free([*node.args, *node.defaults, *node.body], inside, own)
    elif isinstance(node, nodes.With):
        yield from _all_free(node.values, bound, own)
        yield from _all_free([*node.targets, *node.body], set(bound), own)
    elif isinstance(node, nodes.Assign):
        yield from _all_free([node.node, node.target], bound, own)
    elif isinstance(node, nodes.AssignBlock | nodes.FilterBlock):
        filters = [node.filter] if node.filter else []
        yield from _all_free([*filters, *node.body], set(bound), own)
        yield from _free(node.target, bound, own) if isinstance(node, nodes.AssignBlock) else ()
    else:
        yield from _all_free(node.iter_child_nodes(), bound, own)


def _all_free(parts: Iterable[nodes.Node], bound: set[str], own: set[str]) -> Iterator[str]:
    for part in parts:
        yield from _free(part, bound, own)


def refuse_unknown(variables: Mapping[str, Any], known: frozenset[str]) -> None:
    """Refuse variables that a template does not read.

    Raises:
        TemplateError: There is one; the field is `template_variables`.
    """
    unknown = sorted(variables.keys() - known)
    if not unknown:
        return
    close = difflib.get_close_matches(unknown[0], known, n=1)
    used = ", ".join(sorted(known)[:_MOST_SHOWN]) or "none"
    guess = f"did you mean {close[0]!r}? " if close else ""
    raise TemplateError(
        f"the chat template does not use the variable {unknown[0]!r:.80}",
        hint=f"{guess}remove it from template_variables, or set another chat_template; it uses: {used}",
        field="template_variables",
        code="unknown_template_variable",
    )


def with_defaults(source: str, variables: Mapping[str, Any]) -> str:
    """Return a template that has these values where its caller sets none, for other programs."""
    head = "".join(
        f"{{% if {name} is not defined %}}{{% set {name} = {_literal(value)} %}}{{% endif %}}"
        for name, value in variables.items()
    )
    return head + source


def _literal(value: Any) -> str:
    """Return a JSON value as Jinja writes it."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return repr(value)  # Jinja reads Python's True, None, numbers and strings.


def writes_date(source: str) -> bool:
    """Whether a template may write the date of the day on which it is rendered."""
    return "strftime_now" in source


def clock_at(day: str) -> Callable[[str], str]:
    """Return `strftime_now` of templates, at the beginning of a day (`2026-11-29`)."""
    now = datetime.combine(date.fromisoformat(day), time())

    def strftime_now(form: str) -> str:
        if len(form) > _LONGEST_DATE:  # A field may be as wide as the format asks.
            raise jinja2.TemplateError(f"it asks for a date in more than {_LONGEST_DATE} characters")
        return now.strftime(form)

    return strftime_now
