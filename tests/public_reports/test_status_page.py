"""The page of public reports names tests that exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "internals" / "public_reports.md").read_text(encoding="utf-8")


def test_names_tests_that_exist():
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
    assert len(named) > 20
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert not name or name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, (
            name
        )
