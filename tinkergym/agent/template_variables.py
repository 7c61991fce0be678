"""Variables of a chat template, such as `enable_thinking`: which it uses, and which date it writes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time
from typing import Any

import jinja2
from jinja2 import meta, nodes

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
    free = meta.find_undeclared_variables(parsed) - RESERVED_VARIABLES
    first: dict[str, str] = {}
    for name in _in_order(parsed):
        first.setdefault(name.name, name.ctx)
    return frozenset(name for name in free if first.get(name) == "load")


def _in_order(node: nodes.Node) -> Iterator[nodes.Name]:
    """Yield the names of a template in the order in which it reads and sets them."""
    if isinstance(node, nodes.Name):
        yield node
    target = getattr(node, "target", None)
    others = list(node.iter_child_nodes(exclude=("target", "iter")))
    # A loop sets its target before the rest, an assignment after it.
    children = [node.iter, target, *others] if isinstance(node, nodes.For) else [*others, target]
    for child in children:
        if child is not None:
            yield from _in_order(child)


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
