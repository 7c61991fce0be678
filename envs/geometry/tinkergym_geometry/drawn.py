"""Drawn problems, in the record format of geometry3k: 600 to train on and 200 to test with.

A further field, `expression`, says how the answer is worked out, for demonstrations with a calculator.

No picture of one split is in the other. Each shows one of the 40 figures at one of 20 places.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from tinkergym.images.stored_images import image_file
from tinkergym.tasks import GeneratorTasks
from tinkergym_geometry.area import QUESTION
from tinkergym_geometry.figures import FIGURES, MOVES, draw_at

SEED = 20250
SIZES = {"train": 600, "test": 200}


def train() -> Iterator[dict[str, Any]]:
    """Yield the problems to train on."""
    return _records(SIZES["test"], SIZES["test"] + SIZES["train"])


def test() -> Iterator[dict[str, Any]]:
    """Yield the problems that are held out."""
    return _records(0, SIZES["test"])


def drawn_tasks(split: str) -> GeneratorTasks:
    """Return the problems of a split; they are drawn when they are asked for.

    Raises:
        InvalidRequestError: There is no such split.
    """
    return GeneratorTasks({"train": train, "test": test}, SIZES.get(split, 1), split=split)


def _records(first: int, end: int) -> Iterator[dict[str, Any]]:
    every = list(product(FIGURES, range(MOVES[0]), range(MOVES[1])))
    for index in np.random.default_rng(SEED).permutation(len(every))[first:end]:
        figure, right, down = every[int(index)]
        picture = image_file(draw_at(figure, right, down)).data
        yield {
            "images": [{"bytes": picture, "path": None}],
            "problem": f"<image>{QUESTION}",
            "answer": str(figure.area),
            "expression": figure.expression,
        }
