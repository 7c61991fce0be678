"""What one rendering of a chat template may use: work is charged before it is done.

A unit is one character that is read or written, 8 bytes of a list, or one node of a template's code: between
1 and 100 ns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from typing import Any

from jinja2.utils import Namespace

MOST_UNITS = 2_000_000
"""What a template may use whatever the conversation is."""
_UNITS_PER_CHARACTER = 64
"""And for each character of the conversation: templates read a text several times."""
_UNITS_PER_VALUE = 2000
"""And for each key and value of messages and tools: templates call macros for those of a JSON Schema."""
_UNITS_PER_MESSAGE = 20_000
"""And for each message: a few templates look through all messages for each of them."""
_MOST_UNITS_AT_ALL = 64_000_000
"""However long the conversation is: a job's template may come with a text of megabytes from the same person.
Templates of models need up to 17 units per character, so this is enough for some millions."""
_MOST_UNITS_AT_ONCE = 10_000_000
"""Of one step, which may hold Python's lock until it is done: at most 0.3 s."""

ITEM = 8
"""Units of an item of a list, or of a number."""
_LARGE_NUMBER = 2**61 - 1
"""Python's hash of a number is its remainder modulo this."""
_UNITS_OF_EQUAL_HASHES = 1000
"""Python's hashes of larger numbers and of tuples can be equal; sets and dicts then compare all with all."""
_DEEPEST = 100
"""Nesting of lists. Python's hash of a very deep tuple would end the process."""
_ListIterator: type[Any] = type(iter([]))


class _Allowance:
    """What remains for one rendering."""

    __slots__ = ("left", "most")

    def __init__(self, most: int) -> None:
        self.left = self.most = most


_allowance: ContextVar[_Allowance] = ContextVar("allowance")


@contextmanager
def bounded(messages: Sized = (), tools: object = ()) -> Iterator[None]:
    """Compile a template in this context, or render it for a conversation."""
    units = MOST_UNITS + _UNITS_PER_MESSAGE * len(messages) + _earned(messages) + _earned(tools)
    token = _allowance.set(_Allowance(min(units, _MOST_UNITS_AT_ALL)))
    try:
        yield
    finally:
        _allowance.reset(token)


def charge(units: int) -> None:
    """Take units from the current rendering's allowance.

    Raises:
        OverflowError: Too few are left, or these are too many for one step.
    """
    allowance = _allowance.get()
    allowance.left -= units
    if units > _MOST_UNITS_AT_ONCE:
        raise OverflowError(
            f"it does too much work at once: more than {_MOST_UNITS_AT_ONCE} characters in one step"
        )
    if allowance.left < 0:
        whose = "any" if allowance.most == _MOST_UNITS_AT_ALL else "this"
        raise OverflowError(
            f"it does too much work: more than {allowance.most} steps and characters, the most for {whose} "
            "conversation"
        )


def charge_for(value: Any, depth: int = 0) -> int:
    """Charge for looking at all of a value, which may contain another one many times; return the units.

    Raises:
        OverflowError: It is too large, or nested too deeply.
    """
    parts: Any = ()
    if isinstance(value, str):
        units = 1 + len(value)
    elif value is None:
        units = 1
    elif isinstance(value, int):
        units = _weight_of_number(value)
    elif isinstance(value, range):
        units = ITEM + len(value) * max(_weight_of_number(value.start), _weight_of_number(value.stop))
    else:
        parts = _parts(value)
        units = ITEM * (1 + len(parts)) + (_UNITS_OF_EQUAL_HASHES if isinstance(value, tuple) else 0)
    charge(units)
    if parts and depth == _DEEPEST:
        raise OverflowError(f"it nests values more than {_DEEPEST} deep")
    for part in parts:
        units += charge_for(part, depth + 1)
    return units


def _weight_of_number(number: int) -> int:
    return ITEM if -_LARGE_NUMBER < number < _LARGE_NUMBER else _UNITS_OF_EQUAL_HASHES


def _parts(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, Namespace):
        return list(value._Namespace__attrs.values())
    if isinstance(value, _ListIterator):
        return list(copy(value))  # The original stays where it is.
    # Other objects have no contents that a template can compare or print.
    return value if isinstance(value, Sized) and isinstance(value, Iterable) else ()


def _earned(value: object) -> int:
    """Return the units for the characters and values of a conversation."""
    if isinstance(value, str):
        return _UNITS_PER_VALUE + _UNITS_PER_CHARACTER * len(value)
    if isinstance(value, list | tuple):
        return sum(map(_earned, value))
    if isinstance(value, Mapping):
        return _earned([*value, *value.values()])
    return _UNITS_PER_VALUE
