"""Names of tests are sentences of at most ten words, verb first, and unique in their file."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_WORDS = 10
BEFORE_VERBS = {"can", "neither", "never", "only", "then"}
FILES = sorted([*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("envs/*/tests/test_*.py")])


def names(path):
    return re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)


def test_has_few_words_begins_with_verb_and_is_unique():
    found = {path.relative_to(ROOT).as_posix(): names(path) for path in FILES}
    words = {name: name.split("_")[1:] for file in found.values() for name in file}
    wrong = [
        name
        for name, (first, *rest) in words.items()
        if len(rest) >= MOST_WORDS or not (first.endswith("s") or first in BEFORE_VERBS)
    ]
    twice = [(file, name) for file, all_ in found.items() for name, n in Counter(all_).items() if n > 1]
    assert (wrong, twice) == ([], [])
