"""A function fits on a screen."""

import ast
from pathlib import Path

from scripts.statements import statements

ROOT = Path(__file__).parents[1]
MOST_LINES = 60
"""Without its docstring."""


def lengths():
    for path in [
        *ROOT.glob("tinkergym/**/*.py"),
        *ROOT.glob("backend/**/*.py"),
        *ROOT.glob("envs/*/tinkergym_*/**/*.py"),
    ]:
        for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                documented = ast.get_docstring(node, clean=False) is not None
                text = node.body[0].end_lineno - node.body[0].lineno + 1 if documented else 0
                yield (
                    node.end_lineno - node.lineno + 1 - text,
                    f"{path.relative_to(ROOT)}:{node.lineno} {node.name}",
                )


def test_keeps_every_function_shorter_than_a_screen():
    assert [found for found in lengths() if found[0] > MOST_LINES] == []
