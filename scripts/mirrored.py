"""List modules of `tinkergym/` and `backend/` without a matching test: `python scripts/mirrored.py`."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("tinkergym", "backend")


@functools.cache
def modules() -> list[Path]:
    """Return the modules with behaviour, as paths relative to the project's root."""
    found = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return [path.relative_to(ROOT) for path in found if _defines(path)]


def test_of(module: Path) -> Path:
    """Return the path of a module's test: `tests/<path>/test_<module>.py`."""
    return Path("tests") / module.parent / f"test_{module.name}"


def unmirrored() -> list[Path]:
    """Return the modules without a test at the matching path."""
    return [module for module in modules() if not (ROOT / test_of(module)).is_file()]


def share() -> float:
    """Return the share of modules with a test at the matching path."""
    return 1.0 - len(unmirrored()) / len(modules())


def _defines(path: Path) -> bool:
    """Return whether there is a function with a body: declarations have no behaviour to test."""
    if path.name == "__main__.py" or path.parent.parent.name == "migrations":
        return False  # Revisions are tested together: what they lead to, and from where.
    functions = (
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return any(not _is_constant(line) for function in functions for line in function.body)


def _is_constant(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


if __name__ == "__main__":
    for module in unmirrored():
        print(module)
    print(f"{share():.0%} of {len(modules())} modules have a test at the same path")
