"""Packs know the SDK only, whether or not they are installed where the import rules are checked."""

import ast
from pathlib import Path

import pytest

PACKS = sorted(init.parent for init in (Path(__file__).parents[2] / "envs").glob("*/tinkergym_*/__init__.py"))
FORBIDDEN = {"backend", "torch", "transformers", "peft", "ray", "vllm", "fastapi", "sqlalchemy", "httpx"}


def imported(file):
    """Return the top-level packages that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("pack", PACKS, ids=lambda pack: pack.name)
def test_imports_no_service_and_no_other_pack_in_a_pack(pack):
    files = sorted(pack.rglob("*.py"))
    assert files
    for file in files:
        found = imported(file)
        others = {name for name in found if name.startswith("tinkergym_") and name != pack.name}
        assert not found & FORBIDDEN | others, file
