"""A comment is whole: an edit that cuts off its first line leaves one that begins within a sentence."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("backend", "benchmarks", "envs", "examples", "scripts", "tests", "tinkergym")
PROGRAMS = {"glibc", "pip", "ruff", "wandb"}
"""Names without a capital that no module imports."""
BEGINS_WITHIN = {"and", "as", "by", "for", "from", "if", "in", "is", "not", "or", "to", "while", "with"}
"""Words of Python, or names in any file, that begin no comment about themselves."""


def torn_comments(source, names):
    """Yield the first lines of comments that begin with a small letter, but not with a name."""
    if not re.search(r"^ *# [a-z]{2,}", source, re.MULTILINE):
        return
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    names = names | {token.string for token in tokens if token.type == tokenize.NAME} - BEGINS_WITHIN
    last = 0
    for token in tokens:
        (line, column), text = token.start, token.string
        if token.type == tokenize.COMMENT and not token.line[:column].strip():
            word = re.match(r"# ([a-z]{2,})(?=[\s',:;.])", text)
            if last != line - 1 and word and word[1] not in names:
                yield line, text
            last = line


def test_begins_no_comment_within_a_sentence():
    files = [path for folder in FOLDERS for path in ROOT.glob(f"{folder}/**/*.py")]
    sources = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in files}
    imports = r"^\s*(?:import|from) (\w+)"
    names = PROGRAMS | {name for text in sources.values() for name in re.findall(imports, text, re.MULTILINE)}
    assert [(path, *torn) for path, text in sources.items() for torn in torn_comments(text, names)] == []
    assert list(torn_comments("a = 1\n# of the weights,\n# which stay.\n", names)) == [
        (2, "# of the weights,")
    ]
