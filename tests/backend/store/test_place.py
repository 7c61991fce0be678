import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.errors import ConfigError
from backend.store.place import database_file, default_url

BACKEND = Path(__file__).parents[3] / "backend"


def test_puts_unnamed_database_into_the_services_folder(tmp_path):
    assert database_file(default_url(tmp_path)).parent == tmp_path


def test_accepts_a_database_anywhere(tmp_path):
    assert database_file(f"sqlite:///{tmp_path}/jobs.db") == tmp_path / "jobs.db"


@pytest.mark.parametrize(
    "url", ["mysql://host/db", "postgresql://host", "sqlite://", "sqlite:///:memory:", "nonsense"]
)
def test_rejects_database_that_is_not_a_file(url):
    with pytest.raises(ConfigError) as caught:
        database_file(url)
    assert caught.value.field == "database_url"


def said(tree: ast.Module) -> Iterator[str]:
    """Yield the names and texts of a module, but not its docstrings."""
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.value
        for field in ("id", "attr", "name", "module"):
            yield str(getattr(node, field, ""))


def test_tells_only_the_store_which_database_it_is():
    elsewhere = [path for path in BACKEND.rglob("*.py") if BACKEND / "store" not in path.parents]
    assert elsewhere
    texts = {path: text for path in elsewhere if "sqlite" in (text := path.read_text()).lower()}
    knowing = [path for path, text in texts.items() if "sqlite" in " ".join(said(ast.parse(text))).lower()]
    assert knowing == []
