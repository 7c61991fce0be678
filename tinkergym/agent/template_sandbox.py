"""Jinja's sandbox for chat templates, with limits on memory and time.

Jinja limits what a template may access, but not how much it may use. Templates come from models and jobs,
from anyone, and are rendered in shared processes, where one call in C can hold Python's lock for seconds. So
everything that a template does is charged to an allowance before it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, cast

from jinja2 import nodes, pass_context
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from tinkergym.agent.template_allowance import ITEM, charge, charge_for
from tinkergym.agent.template_costs import (
    AT_ONCE_FILTERS,
    AT_ONCE_TESTS,
    METHODS,
    NEVER,
    charge_container,
    foresee_at_once,
    foresee_call,
    foresee_filter,
    foresee_operator,
    length,
    refuse_large,
)

_ROUND = 5
"""Units of a loop's iteration, besides those for the code in it."""
_SHORT = 100
"""Characters of a constant that need not be charged."""
_CHARGED_TOGETHER = 10_000
"""Characters of output; charging each of its parts would take longer than making them."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox; its templates are compiled and rendered in `bounded`."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, **options: Any) -> None:
        # Not optimized: constant expressions would be computed once uncharged, and their results then used.
        super().__init__(**options, optimized=False, finalize=_weighed)
        self.globals.pop("lipsum")  # It would produce any amount of text, and no template uses it.
        self.filters = {name: _bounded(name, one) for name, one in self.filters.items() if name not in NEVER}
        self.tests = {name: _bounded(name, cast(Any, one), AT_ONCE_TESTS) for name, one in self.tests.items()}
        self.filters.update({_name(one): one for one in _ADDED})

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Add a filter with limits."""
        self.filters[name] = _bounded(name, function)

    @staticmethod
    def concat(chunks: Iterable[str]) -> str:
        """Join a template's output."""
        parts, size = [], 0
        for part in chunks:
            parts.append(part)
            size += 1 + len(part)
            if size > _CHARGED_TOGETHER:
                charge(size)
                size = 0
        charge(size)
        return "".join(parts)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = _Charged().visit(super()._parse(source, name, filename))
        template.set_environment(self)
        return template

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may read an attribute."""
        allowed = METHODS.get(type(obj))
        if allowed is None:
            allowed = next((those for kind, those in METHODS.items() if isinstance(obj, kind)), None)
        if allowed is not None:
            return attr in allowed
        return super().is_safe_attribute(obj, attr, value)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return an item; the hash of a tuple reads all of it."""
        if not isinstance(argument, str | int):
            charge_for(argument)
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute a binary operation."""
        foresee_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a macro, a method or a function."""
        foresee_call(__obj, args, kwargs)
        if isinstance(__obj, LoopContext) and args:
            args = (_counted(__context, args[0]), *args[1:])
        return super().call(__context, __obj, *args, **kwargs)


class _Charged(NodeTransformer):
    """Charges for what the compiled code does without asking the environment."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - Jinja's
        self.generic_visit(node)
        node.iter = _filter(_counted, node.iter)
        if node.test is not None:  # It is computed for the items that it leaves out, too.
            spent = _spending(_size([node.test]), node.lineno)
            node.test = nodes.Or(spent, node.test, lineno=node.lineno)
        self._charge(node, node.body)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:  # noqa: N802
        self.generic_visit(node)
        self._charge(node, [*node.body, *getattr(node, "defaults", ())])
        return node

    visit_CallBlock = visit_Block = visit_Macro  # noqa: N815

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        return _filter(_joined, nodes.List(node.nodes, lineno=node.lineno))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        self.generic_visit(node)
        node.expr = self._operand(node.expr, _weighed)
        for operand in node.ops:
            sought = operand.op in {"in", "notin"}
            operand.expr = self._operand(operand.expr, _container if sought else _weighed)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Getitem:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _filter(_copied, node.node)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Pair:  # noqa: N802
        self.generic_visit(node)
        node.key = self._operand(node.key, _weighed)
        return node

    def visit_Call(self, node: nodes.Call) -> nodes.Call:  # noqa: N802
        self.generic_visit(node)
        for name in ("dyn_args", "dyn_kwargs"):
            if getattr(node, name) is not None:
                setattr(node, name, _filter(_copied, getattr(node, name)))
        return node

    def _charge(self, node: nodes.For | nodes.Macro, repeated: Iterable[nodes.Node]) -> None:
        spent = _spending(_ROUND + _size(repeated), node.lineno)
        node.body = [nodes.ExprStmt(spent, lineno=node.lineno), *node.body]

    def _operand(self, node: nodes.Expr, charged: Callable[..., Any]) -> nodes.Expr:
        if isinstance(node, nodes.Const) and length(node.value) <= _SHORT:
            return node
        return _filter(charged, node)


def _size(parts: Iterable[nodes.Node]) -> int:
    return sum(1 for part in parts for _ in part.find_all(nodes.Node))


def _spending(units: int, line: int) -> nodes.Filter:
    return _filter(_spent, nodes.Const(units, lineno=line))


def _name(function: Callable[..., Any]) -> str:
    return f"tinkergym{function.__name__}"


def _filter(function: Callable[..., Any], of: nodes.Node) -> nodes.Filter:
    return nodes.Filter(cast(nodes.Expr, of), _name(function), [], [], None, None, lineno=of.lineno)


@pass_context  # So that Jinja does not compute any of these when it compiles a template.
def _spent(_: Context, units: int) -> None:
    charge(units)


@pass_context
def _weighed(_: Context, value: Any) -> Any:
    charge_for(value)
    return value


@pass_context
def _container(_: Context, value: Any) -> Any:
    charge_container(value)
    return value


@pass_context
def _copied(_: Context, value: Any) -> Any:
    charge(length(value) * (1 if isinstance(value, str) else ITEM))
    return value


@pass_context
def _counted(_: Context, items: Any) -> Any:
    if not isinstance(items, Iterator):
        charge(_ROUND * length(items))
        return items
    return _counting(items)


def _counting(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        charge(ITEM)
        yield item


@pass_context
def _joined(_: Context, parts: list[Any]) -> str:
    for part in parts:
        charge_for(part)
    return "".join([str(part) for part in parts])


_ADDED = (_spent, _weighed, _container, _copied, _counted, _joined)
"""Filters added by the compiler around what loops, comparisons, slices and `~` do by themselves."""


def _bounded(
    name: str, function: Callable[..., Any], at_once: frozenset[str] = AT_ONCE_FILTERS
) -> Callable[..., Any]:
    first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)  # With Jinja's metadata.
    def call(*args: Any, **kwargs: Any) -> Any:
        if name in at_once:
            foresee_at_once(args[first:], kwargs)
        else:
            foresee_filter(name, args[first:], kwargs)
        made = function(*args, **kwargs)
        if isinstance(made, int):
            refuse_large(made.bit_length())
        # Its items are made now: chains of generators would do their work, and end, uncharged.
        return iter(list(_counting(made))) if isinstance(made, Iterator) else made

    return call
