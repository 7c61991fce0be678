"""What filters, tests, methods and operators of chat templates cost, charged before they run.

What is not listed here is charged for all of its input, as if it were slow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from string import Formatter
from typing import Any

from tinkergym.agent.template_allowance import ITEM, charge, charge_for

_CALL = 50
"""Units of any filter, test or call."""
_SLOW = 8
"""Units per unit of input for what runs in Python, or makes an object of every few characters."""
_SORTING = 20
"""The same for what sorts; the logarithm of the number of items."""

AT_ONCE_FILTERS = frozenset({"attr", "count", "d", "default", "first", "last", "length"})
AT_ONCE_TESTS = frozenset({
    *("boolean", "callable", "defined", "divisibleby", "even", "false", "filter", "float", "integer"),
    *("iterable", "mapping", "none", "number", "odd", "sameas", "sequence", "string", "test", "true"),
    "undefined",
})  # fmt: skip
"""These do not look at what their input contains."""
_OF_ITEMS = frozenset({"items", "list", "map", "reject", "rejectattr", "reverse", "select", "selectattr"})
"""These only hand on the items of a list; what is done with each is charged by itself."""
_FAST = frozenset({
    *("abs", "e", "escape", "indent", "int", "join", "lower", "replace", "safe"),
    *("string", "tojson", "trim", "upper", "==", "!=", "<", "<=", ">", ">=", "eq", "equalto", "ge", "gt"),
    *("greaterthan", "le", "lessthan", "lt", "ne", "count", "endswith", "find", "index", "isalpha"),
    *("isdigit", "islower", "isspace", "isupper", "lstrip", "partition", "removeprefix", "removesuffix"),
    *("rfind", "rindex", "rpartition", "rsplit", "rstrip", "split", "startswith", "strip"),
})  # fmt: skip
"""A few nanoseconds per character."""
_SORTS = frozenset({"dictsort", "groupby", "max", "min", "sort", "unique"})
_INDENTS = frozenset({"indent", "tojson"})
_PARTS = frozenset({"replace", "rsplit", "split"})

NEVER = frozenset({"pprint", "striptags", "urlize", "wordwrap"})
"""Filters whose time may grow with the square of their input; no chat template needs them."""
METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset({
        *("capitalize", "casefold", "center", "count", "endswith", "find", "format", "index", "isalnum"),
        *("isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric"),
        *("isprintable", "isspace", "istitle", "isupper", "join", "ljust", "lower", "lstrip", "partition"),
        *("removeprefix", "removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit"),
        *("rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper", "zfill"),
    }),
    int: frozenset(),
    float: frozenset({"is_integer"}),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
}  # fmt: skip
"""What templates may call of Python's own types."""

_MOST_BITS = 1024
_WIDTH = re.compile(r"(?<=[%)#+ .-])(\d++)(?=[a-zA-Z.])")
"""A width or precision in a format with `%`, and sometimes a number of the text around it."""


def foresee_filter(name: str, given: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Charge for a filter, or for a test with arguments.

    Raises:
        OverflowError: The template has used up its allowance.
    """
    charge(_CALL)
    everything = [*given, *kwargs.values()]
    if name == "format" and everything:
        _foresee_percent(*everything)
    elif name == "in" and len(everything) > 1:
        charge_for(everything[0])
        charge_container(everything[1])
    elif everything:
        _foresee(name, everything[0], everything[1:])


def foresee_at_once(given: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Charge for a filter or test that does not look at what its first argument contains."""
    charge(_CALL)
    _charge_for_all([*given[1:], *kwargs.values()])


def foresee_call(function: Any, given: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Charge for a method, a macro or another function.

    Raises:
        OverflowError: The template has used up its allowance.
    """
    charge(_CALL)
    everything = [*given, *kwargs.values()]
    method = getattr(function, "__wrapped__", function)  # The sandbox wraps `format`.
    owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
    if name == "join" and everything:
        _foresee(name, everything[0], [owner])
    elif name in {"format", "format_map"} and isinstance(owner, str):
        _foresee_braces(owner, *everything)
    elif isinstance(owner, str | list | tuple | range):
        _foresee(name, owner, everything)
    else:
        charge(ITEM * len(owner) if isinstance(owner, Mapping) and name == "copy" else 0)
        _charge_for_all(everything)


def _foresee(name: str, subject: Any, others: list[Any]) -> None:
    """Charge for the input, times what the arguments make of each part of it."""
    of_items = name in _OF_ITEMS and not isinstance(subject, str)
    size = ITEM * length(subject) if of_items else charge_for(subject)
    _charge_for_all(others)
    numbers = sum(abs(one) for one in others if isinstance(one, int))
    charge(numbers if name != "round" else numbers**2)  # Its number is an exponent.
    texts = [one for one in others if isinstance(one, str)]
    if name in _PARTS and texts and isinstance(subject, str):
        # Each part of the text is compared with the first one.
        charge(size * len(texts[0]) // ITEM)
        charge(subject.count(texts[0]) * (2 * ITEM + sum(map(len, texts))))
        return
    times = 1 + sum(map(len, texts)) // ITEM
    if name in _INDENTS:
        times += numbers
    elif name == "sum" and others:
        times += length(subject)  # A sum of lists copies what it has so far for each of them.
    charge(size * times * (_SORTING if name in _SORTS else 1 if name in _FAST else _SLOW))


def foresee_operator(operator: str, left: Any, right: Any) -> None:
    """Charge for a binary operator.

    Raises:
        OverflowError: The template has used up its allowance, or computes a large number.
    """
    charge(1)
    if type(left) is type(right) is str and operator == "+":  # Most operations of templates.
        charge(len(left) + len(right))
    elif isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
        refuse_large(bits)
    elif operator == "%" and isinstance(left, str):
        _foresee_percent(left, *(right if isinstance(right, tuple) else [right]))
    elif operator in {"+", "*"}:
        unit = 1 if isinstance(left, str) or isinstance(right, str) else ITEM
        times = max(1, *(one for one in (left, right) if isinstance(one, int)), 1) if operator == "*" else 1
        charge(times * (length(left) + length(right)) * unit)
    else:
        _charge_for_all((left, right))


def refuse_large(bits: int) -> None:
    """Refuse a number of so many bits: dividing large ones takes seconds.

    Raises:
        OverflowError: There are too many.
    """
    if bits > _MOST_BITS:
        raise OverflowError(f"it computes a number of more than {_MOST_BITS} bits")


def charge_container(container: Any) -> None:
    """Charge for looking for something in a container."""
    if isinstance(container, Mapping):
        charge(ITEM)
    else:
        charge_for(container)


def length(value: Any) -> int:
    """Return how many items a value has, 0 if it has none."""
    try:
        return len(value)
    except TypeError:
        return 0


def _charge_for_all(values: Iterable[Any]) -> int:
    return sum(map(charge_for, values))


def _foresee_percent(form: Any, *values: Any) -> None:
    """Charge for a format with `%`."""
    rest = charge_for(form) + _charge_for_all(values)
    charge(sum(abs(one) for one in values if isinstance(one, int)))  # `*` takes a width from a value.
    if isinstance(form, str):
        charge(_total(_WIDTH.findall(form)) + form.count("%") * rest)


def _foresee_braces(form: str, *values: Any) -> None:
    """Charge for a format with braces."""
    rest = charge_for(form) + _charge_for_all(values)
    for spec in _specs(form):
        if "{" in spec:
            raise OverflowError("it takes a width from a value")
        charge(rest + _total(re.findall(r"\d+", spec)))


def _specs(form: str) -> Iterator[str]:
    try:
        yield from (spec for _, _, spec, _ in Formatter().parse(form) if spec is not None)
    except ValueError:  # It says so when it is used.
        return


def _total(numbers: Iterable[str]) -> int:
    return sum(int(one.lstrip("0")[:10] or 0) for one in numbers)
