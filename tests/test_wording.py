"""Tests compare errors by type, `field` and `code`; wording is pinned in one table per subject.

`python -m tests.test_wording` lists every comparison with an error's text.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST = 150
"""Assertions on wording in all tests."""

_MAY_COMPARE = re.compile(r"\.message|\.hint|\bstr\(|match=|check=")
"""What a file with such a comparison contains."""
_TEXTS = {"message", "hint"}
_NAMES = {"error", "caught", "refused", "raised", "told", "failed"}
"""What tests call an error, or what caught it."""


def _is_error(node: ast.expr) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _NAMES
    return isinstance(node, ast.Attribute) and (node.attr in {"value", "error"} or _is_error(node.value))


def _is_text(node: ast.AST) -> bool:
    """Whether an expression is the text of an error, or a part of it."""
    if isinstance(node, ast.Attribute):
        return node.attr in _TEXTS and _is_error(node.value)
    return isinstance(node, ast.Call) and (
        isinstance(node.func, ast.Name) and node.func.id == "str" and any(map(_is_error, node.args))
    )


def _is_bound(node: ast.expr) -> bool:
    """Whether an assertion says what a text does not contain, or how long it is: of secrets and floods."""
    if isinstance(node, ast.Compare):
        return isinstance(node.ops[0], ast.NotIn) or ast.unparse(node.left).startswith("len(")
    return isinstance(node, ast.Call) and ast.unparse(node).endswith("isprintable()")


def _has_text(node: ast.AST, helpers: set[str]) -> bool:
    """Whether an expression has an error's text, also by a helper that returns it."""
    return any(
        _is_text(part)
        or (isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id in helpers)
        for part in ast.walk(node)
    )


def _helpers(tree: ast.Module) -> set[str]:
    """Return the functions of a file that return an error's text."""
    return {
        function.name
        for function in tree.body
        if isinstance(function, ast.FunctionDef)
        and any(isinstance(node, ast.Return) and _has_text(node, set()) for node in ast.walk(function))
    }


def _is_about_wording(node: ast.AST, helpers: set[str]) -> bool:
    if isinstance(node, ast.Call):
        is_raises = isinstance(node.func, ast.Attribute) and node.func.attr == "raises"
        return is_raises and any(
            keyword.arg == "match" or (keyword.arg == "check" and _has_text(keyword.value, helpers))
            for keyword in node.keywords
        )
    return isinstance(node, ast.Assert) and not _is_bound(node.test) and _has_text(node.test, helpers)


def wording() -> Iterator[tuple[str, int]]:
    """Yield the file and line of each comparison with an error's text."""
    for path in sorted([*ROOT.glob("tests/**/*.py"), *ROOT.glob("envs/*/tests/*.py")]):
        text = path.read_text("utf-8")
        if not _MAY_COMPARE.search(text):
            continue
        tree = ast.parse(text)
        helpers = _helpers(tree)
        lines = sorted({node.lineno for node in ast.walk(tree) if _is_about_wording(node, helpers)})
        yield from ((path.relative_to(ROOT).as_posix(), line) for line in lines)


def test_compares_types_and_fields_instead_of_wording():
    counts = Counter(file for file, _ in wording())
    assert counts.total() <= MOST, counts.most_common(10)


if __name__ == "__main__":
    for file, line in wording():
        print(f"{file}:{line}")
