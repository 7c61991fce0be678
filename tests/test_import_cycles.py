"""No modules import each other in a circle, counting imports inside functions and for type checkers."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from scripts.statements import statements

ROOT = Path(__file__).parents[1]


def _modules(package: str) -> dict[str, Path]:
    files = sorted((ROOT / package).rglob("*.py"))
    parts = {file: file.relative_to(ROOT).with_suffix("").parts for file in files}
    return {".".join(p[:-1] if p[-1] == "__init__" else p): file for file, p in parts.items()}


def _imported(file: Path, modules: dict[str, Path]) -> Iterator[str]:
    for node in statements(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in modules else node.module for name in inner)


@pytest.mark.parametrize("package", ["tinkergym", "backend"])
def test_imports_no_modules_in_a_circle(package):
    modules = _modules(package)
    graph = {name: {*_imported(file, modules)} - {name} for name, file in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))
