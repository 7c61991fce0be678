"""Jinja's sandbox for chat templates, with limits on memory and time.

Jinja limits what a template may access, but not how much it may use. Templates come from models and jobs,
from anyone, and are rendered in shared processes. So one rendering may only make a limited number of loop
iterations and calls, and a limited number of characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, cast

from jinja2 import nodes
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

_MOST_ROUNDS = 1_000_000
_ROUNDS_PER_MESSAGE = 1000
"""Iterations of all loops of one rendering."""
_CALL = 5
"""Iterations charged for a call or a filter."""
_MOST_CHARACTERS = 50_000_000
"""Characters of a conversation's text: ten times what fits in a context of a million tokens."""
_MOST_MADE = 10 * _MOST_CHARACTERS
"""Characters and items created during a rendering."""
_ITEM = 8
"""Characters charged per item of a list."""
_MOST_DIGITS = 300
_SEQUENCES = (str, list, tuple)
_ROUNDS, _JOINED = "tinkergym_rounds", "tinkergym_joined"
"""Filters added by the compiler; they replace what loops and `~` do by themselves."""


class _Allowance:
    """What remains for one rendering."""

    def __init__(self, messages: int) -> None:
        self._rounds, self._made = _MOST_ROUNDS + messages * _ROUNDS_PER_MESSAGE, _MOST_MADE

    def go(self, rounds: int) -> None:
        self._rounds -= rounds
        if self._rounds < 0:
            raise OverflowError(f"its loops and calls exceed about {_MOST_ROUNDS} iterations")

    def make(self, size: int) -> None:
        self._made -= size
        if size > _MOST_CHARACTERS or self._made < 0:
            raise OverflowError(f"it creates more than {_MOST_MADE} characters in intermediate results")


_allowance: ContextVar[_Allowance] = ContextVar("allowance")


@contextmanager
def bounded(messages: int = 0) -> Iterator[None]:
    """Compile a template in this context, or render it for this many messages."""
    token = _allowance.set(_Allowance(messages))
    try:
        yield
    finally:
        _allowance.reset(token)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox; its templates are compiled and rendered in `bounded`."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.globals.pop("lipsum")  # It would produce any amount of text, and no template uses it.
        for name, function in list(self.filters.items()):
            self.add_filter(name, function)
        self.filters[_ROUNDS], self.filters[_JOINED] = _counted, _joined

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Add a filter with limits."""
        self.filters[name] = _bounded(name, function)

    @staticmethod
    def concat(chunks: Iterable[str]) -> str:
        """Join a template's output."""
        parts, size = [], 0
        for part in chunks:
            size += len(part)
            if size > _MOST_CHARACTERS:
                raise OverflowError(f"it writes more than {_MOST_CHARACTERS} characters")
            parts.append(part)
        _allowance.get().make(size)
        return "".join(parts)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = _Bounds().visit(super()._parse(source, name, filename))
        template.set_environment(self)
        return template

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute a product, a power, a sum or a format."""
        if operator == "+":  # Most operations of templates.
            if isinstance(left, _SEQUENCES) and isinstance(right, _SEQUENCES):
                _allowance.get().make(len(left) + len(right))
            return left + right
        if operator == "%" and isinstance(left, str):
            _refuse_wide(left, right if isinstance(right, tuple) else [right])
        elif operator in {"*", "**"}:
            size = _size(left) * _size(right)
            if size > _MOST_CHARACTERS or (operator == "**" and abs(right) * len(f"{left}") > _MOST_DIGITS):
                raise OverflowError(f"it computes something too large with {operator}")
            if isinstance(left, _SEQUENCES) or isinstance(right, _SEQUENCES):
                _allowance.get().make(int(size))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a macro, a method or a function."""
        _allowance.get().go(_CALL)
        if isinstance(__obj, LoopContext) and args:
            args = (_counted(args[0]), *args[1:])
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps `format`
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str | bytes | int):
            args = _foreseen(getattr(method, "__name__", ""), (owner, *args), kwargs)[1:]
        return _noted(super().call(__context, __obj, *args, **kwargs))


class _Bounds(NodeTransformer):
    """Makes loops count their iterations, and `~` its characters."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - Jinja's
        self.generic_visit(node)
        node.iter = _filter(_ROUNDS, node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        return _filter(_JOINED, nodes.List(node.nodes, lineno=node.lineno))


def _filter(name: str, of: nodes.Node) -> nodes.Filter:
    return nodes.Filter(cast(nodes.Expr, of), name, [], [], None, None, lineno=of.lineno)


def _counted(items: Any) -> Any:
    if isinstance(items, Sized):
        _allowance.get().go(len(items))
        return items
    return _counting(items)


def _counting(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _allowance.get().go(1)
        yield item


def _joined(parts: list[Any]) -> str:
    texts = [str(part) for part in parts]
    _allowance.get().make(sum(map(len, texts)))
    return "".join(texts)


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)  # With Jinja's metadata.
    def call(*args: Any, **kwargs: Any) -> Any:
        _allowance.get().go(_CALL)
        return _noted(function(*args[:first], *_foreseen(name, args[first:], kwargs), **kwargs))

    return call


def _foreseen(name: str, given: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Refuse a filter or method that would expand its input too much; return its arguments."""
    if len(given) < 2 and not kwargs and name not in _OF_ONE:
        return given
    size, others = _length(given[0]) if given else 0, [*given[1:], *kwargs.values()]
    longest = max((len(one) for one in others if isinstance(one, str | bytes)), default=0)
    number = max((abs(one) for one in others if isinstance(one, int)), default=0)
    if number > _MOST_CHARACTERS:
        raise OverflowError(f"it gives {name} a number above {_MOST_CHARACTERS}")
    if name in {"format", "format_map"}:
        _refuse_wide(given[0] if given else "", others)
    elif name in _WIDE:
        _allowance.get().make(number)
    elif name in _WIDENS_LINES:
        if max(number, longest) > _WIDEST:
            raise OverflowError(f"it has {name} indent by more than {_WIDEST} characters")
    elif name == "replace":
        _allowance.get().make((size + 1) * max(1, longest))
    elif name in {"join", "sum"}:
        shortest, most = sorted((size, max(map(_length, others), default=0)))
        _allowance.get().make(most * max(1, longest if size >= longest else shortest))
        sums = name == "sum"
        return tuple(
            _weighed(one, sums=sums) if isinstance(one, list | tuple | Iterator) else one for one in given
        )
    return given


_WIDE = frozenset({"center", "ljust", "rjust", "zfill", "batch", "slice", "round", "to_bytes"})
_WIDENS_LINES = frozenset({"expandtabs", "indent", "tojson", "wordwrap"})
_WIDEST = 1000
_OF_ONE = frozenset({"join", "sum", "format"})
"""Filters that may expand their first argument by themselves."""


def _weighed(items: Iterable[Any], *, sums: bool) -> Iterator[Any]:
    so_far = 0
    for item in items:
        so_far = so_far * sums + _length(item)  # Each sum of lists creates a new list.
        _allowance.get().make(so_far * (_ITEM if sums else 1))
        yield item


def _noted(made: Any) -> Any:
    if isinstance(made, _SEQUENCES):
        _allowance.get().make(len(made))
    return made


def _refuse_wide(form: Any, values: Iterable[Any]) -> None:
    """Refuse a format, with `%` or braces, that pads a value excessively."""
    if not isinstance(form, str):
        return
    from_outside = any(isinstance(one, int) and abs(one) > 10**_WIDTH_DIGITS for one in values)
    if _WIDE_FORMAT.search(form) or (from_outside and _WIDTH_FROM_OUTSIDE.search(form)):
        raise OverflowError("it pads a value with too many characters")


_WIDTH_DIGITS = 5
_WIDE_FORMAT = re.compile(r"%[^%a-zA-Z]{0,100}?\d{6}|\{[^{}:]{0,100}:[^{}]{0,100}?\d{6}")
_WIDTH_FROM_OUTSIDE = re.compile(r"%[^%a-zA-Z]{0,100}\*|\{[^{}]{0,100}\{")


def _length(value: Any) -> int:
    return len(value) if isinstance(value, Sized) else 0


def _size(operand: Any) -> float:
    if isinstance(operand, str | bytes | list | tuple):
        return float(len(operand))
    return abs(float(operand))
