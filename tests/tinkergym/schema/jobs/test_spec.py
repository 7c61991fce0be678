"""A setting takes effect or is refused: none is declared that nothing reads."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tinkergym.schema.algorithm_registry import BUILT_IN
from tinkergym.schema.jobs.parts import Limits, Sampling
from tinkergym.schema.jobs.spec import KINDS

ROOT = Path(__file__).parents[4]
RULES = ROOT / "tinkergym" / "schema" / "jobs" / "rules"


def _read(node: ast.AST) -> Iterator[str]:
    """Yield the attributes that some code names, leaving out validators, which only say what is refused."""
    if isinstance(node, ast.FunctionDef) and any("validator" in ast.dump(it) for it in node.decorator_list):
        return
    if isinstance(node, ast.Attribute):
        yield node.attr
    for child in ast.iter_child_nodes(node):
        yield from _read(child)


def test_declares_no_setting_that_nothing_reads():
    models = [*KINDS.values(), *BUILT_IN.values(), Sampling, Limits]
    unread = {name for model in models for name in model.model_fields}
    for package in ("tinkergym", "backend"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text("utf-8")
            # Only files that may read one that is left are parsed: all of them would take seconds.
            if path.parent != RULES and unread.intersection(re.findall(r"\.(\w+)", text)):
                unread -= set(_read(ast.parse(text)))
    assert unread == set()
