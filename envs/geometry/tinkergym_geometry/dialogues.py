"""Conversations about pictures in which an assistant reads labels correctly, but areas only sometimes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tinkergym_geometry.area import QUESTION
from tinkergym_geometry.figures import AREAS, Figure, Pixels, draw

Dialogue = tuple[list[Pixels], str, str]
"""Pictures, the question about them, and the answer."""


def areas(rng: np.random.Generator, count: int, *, accuracy: float = 0.3) -> Iterator[Dialogue]:
    """Yield questions for an area, with a share of `accuracy` correct answers and otherwise random areas."""
    for _ in range(count):
        figure = Figure.drawn_by(rng)
        answer = figure.area if rng.random() < accuracy else AREAS[int(rng.integers(len(AREAS)))]
        yield [draw(figure, rng)], QUESTION, str(answer)


def readings(rng: np.random.Generator, count: int) -> Iterator[Dialogue]:
    """Yield drills with correct answers: what a picture shows, or which of two shows the wider figure."""
    for _ in range(count):
        figures = [Figure.drawn_by(rng)]
        kind = int(rng.integers(4))
        if kind == 0:
            question, answer = "How wide?", str(figures[0].width)
        elif kind == 1:
            question, answer = "How high?", str(figures[0].height)
        elif kind == 2:
            question, answer = "Which shape?", figures[0].shape
        else:
            figures.append(Figure.drawn_by(rng))
            wider = figures[1].width > figures[0].width
            question, answer = "Which is wider?", "second" if wider else "first"
        yield [draw(figure, rng) for figure in figures], question, answer
