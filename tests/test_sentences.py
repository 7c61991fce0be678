"""Code asks for types, `field` and `code`, and looks for no words in our own messages, hints and reasons."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXTS = {"message", "hint", "reason"}
PARTS = re.compile(
    r"(start|end)swith|r?find|r?index|count|r?partition|remove(pre|suf)fix|replace|r?split|splitlines"
)
MAY_PARSE = re.compile(r"\bin\b.*\.(message|hint|reason)\b|\.(message|hint|reason)\.[a-z]+\(")

NOT_WORDS = {
    # A question mark.
    "backend/admission/preflight.py": 1,
    # Another reason of the same job.
    "backend/scheduler/queue_reasons.py": 1,
    # The id of a game.
    "tinkergym/registration/environments.py": 2,
    # Two forms of a path.
    "tinkergym/remote/api.py": 2,
}
"""How often each module looks for something else than words."""


def is_text(node):
    return isinstance(node, ast.Attribute) and node.attr in TEXTS


def parses(node):
    """Whether an expression looks for a part of a text, or takes it apart."""
    if isinstance(node, ast.Compare):
        return isinstance(node.ops[0], ast.In | ast.NotIn) and is_text(node.comparators[0])
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(called, ast.Attribute) and bool(PARTS.fullmatch(called.attr)) and is_text(called.value)


def test_looks_for_no_words_in_our_sentences():
    found = Counter()
    for package in ("tinkergym", "backend"):
        for path in sorted((ROOT / package).rglob("*.py")):
            source = path.read_text("utf-8")
            if MAY_PARSE.search(source):
                found[path.relative_to(ROOT).as_posix()] = sum(map(parses, ast.walk(ast.parse(source))))
    assert +found == NOT_WORDS
