"""The data set's files: one JSON object per line, `{"question": "47+38=", "answer": "85"}`."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from tinkergym.errors import InvalidRequestError

DATA_DIR = Path(__file__).parent / "data"
SPLITS = ("train", "test")


@lru_cache(maxsize=len(SPLITS))
def tasks(split: str) -> tuple[tuple[str, str], ...]:
    """Return the split's (question, answer) pairs in file order; `task_index` counts them from 0.

    Raises:
        InvalidRequestError: There is no such split.
    """
    if split not in SPLITS:
        raise InvalidRequestError(
            f"{split!r} is no split of this data set",
            hint=f"choose one of {', '.join(SPLITS)}",
            field="split",
        )
    lines = (DATA_DIR / f"arithmetic-{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple((row["question"], row["answer"]) for row in map(json.loads, lines))
