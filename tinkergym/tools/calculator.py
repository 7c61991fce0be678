"""A calculator as a tool: exact arithmetic on an expression, without evaluating code."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from fractions import Fraction

from tinkergym.errors import ToolError
from tinkergym.tools.definition import tool

_MOST_CHARACTERS = 200
_MOST_EXPONENT = 64
"""A power is computed before its size is checked, so it may have up to 64 times `_MOST_BITS` bits."""
_MOST_BITS = 4096
_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@tool
def calculator(expression: str) -> str:
    """Calculate an expression of numbers with + - * / ** and parentheses.

    Args:
        expression: Such as (3+4)*12.5
    """
    if len(expression) > _MOST_CHARACTERS:
        raise ToolError(f"the expression is longer than {_MOST_CHARACTERS} characters")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ToolError("that is not an expression of numbers with + - * / ** and parentheses") from error
    except ZeroDivisionError as error:
        raise ToolError("division by zero") from error
    if value.denominator == 1:
        return str(value.numerator)
    try:
        return f"{float(value):.12g}"
    except OverflowError as error:
        raise ToolError("the result is too large") from error


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return _bounded(Fraction(str(node.value)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            if right.denominator != 1 or abs(right) > _MOST_EXPONENT:
                raise ToolError(f"exponents are whole numbers up to {_MOST_EXPONENT}")
            return _bounded(left ** int(right))
        if type(node.op) in _BINARY:
            return _bounded(_BINARY[type(node.op)](left, right))
    raise ValueError(ast.dump(node))


def _bounded(value: Fraction) -> Fraction:
    if value.numerator.bit_length() > _MOST_BITS or value.denominator.bit_length() > _MOST_BITS:
        raise ToolError("the numbers grow too large")
    return value
