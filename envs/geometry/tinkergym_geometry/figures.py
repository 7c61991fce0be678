"""Figures with two labelled sides, and their pictures.

Drawn with numpy only, so a figure has the same pixels on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Shape = Literal["rectangle", "triangle"]

SIDE = 64
"""Height and width of a picture in pixels."""

WIDTHS, HEIGHTS = (2, 4, 6, 8), (1, 2, 3, 4, 5)
SHAPES: tuple[Shape, ...] = ("rectangle", "triangle")

MOVES = (5, 4)
"""By how many pixels, at least one less, a figure may be moved to the right, and down."""

_INK, _SCALE = 0, 3
_DIGITS = {
    "0": ("111", "101", "101", "101", "111"),
    "1": ("010", "110", "010", "010", "111"),
    "2": ("111", "001", "111", "100", "111"),
    "3": ("111", "001", "111", "001", "111"),
    "4": ("101", "101", "111", "001", "001"),
    "5": ("111", "100", "111", "001", "111"),
    "6": ("111", "100", "111", "101", "111"),
    "7": ("111", "001", "010", "010", "010"),
    "8": ("111", "101", "111", "101", "111"),
    "9": ("111", "101", "111", "001", "111"),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A rectangle or a right triangle, with its width written below and its height next to it."""

    shape: Shape
    width: int
    """Even, so that every area is a whole number."""
    height: int

    @property
    def area(self) -> int:
        """In square units."""
        return self.width * self.height // (1 if self.shape == "rectangle" else 2)

    @property
    def expression(self) -> str:
        """How the area is worked out."""
        return f"{self.width}*{self.height}" + ("" if self.shape == "rectangle" else "/2")

    @classmethod
    def drawn_by(cls, rng: np.random.Generator) -> Figure:
        """Choose a figure; all are equally likely."""
        return cls(
            SHAPES[int(rng.integers(len(SHAPES)))],
            WIDTHS[int(rng.integers(len(WIDTHS)))],
            HEIGHTS[int(rng.integers(len(HEIGHTS)))],
        )


FIGURES = tuple(Figure(shape, width, height) for shape in SHAPES for width in WIDTHS for height in HEIGHTS)
"""All figures."""
AREAS = tuple(sorted({figure.area for figure in FIGURES}))


def draw(figure: Figure, rng: np.random.Generator) -> Pixels:
    """Return the picture of a figure, [64, 64, 3], randomly shifted by a few pixels."""
    right = int(rng.integers(MOVES[0]))
    return draw_at(figure, right, int(rng.integers(MOVES[1])))


def draw_at(figure: Figure, right: int, down: int) -> Pixels:
    """Return the picture of a figure, [64, 64, 3], shifted by so many pixels; `MOVES` has the bounds."""
    picture = np.full((SIDE, SIDE), 255, np.uint8)
    left, bottom = 20 + right, 40 + down
    right, top = left + 4 * figure.width, bottom - 6 * figure.height
    _line(picture, (left, bottom), (right, bottom))
    _line(picture, (left, bottom), (left, top))
    if figure.shape == "rectangle":
        _line(picture, (right, bottom), (right, top))
        _line(picture, (left, top), (right, top))
    else:
        _line(picture, (left, top), (right, bottom))
    _write(picture, str(figure.width), (left + right) // 2 - 4, bottom + 4)
    _write(picture, str(figure.height), left - 14, (top + bottom) // 2 - 7)
    return np.repeat(picture[:, :, None], 3, axis=2)


def _line(picture: Pixels, begin: tuple[int, int], end: tuple[int, int]) -> None:
    steps = 2 * max(abs(end[0] - begin[0]), abs(end[1] - begin[1]), 1)
    columns, rows = (np.rint(np.linspace(a, b, steps)).astype(int) for a, b in zip(begin, end, strict=True))
    for more in (0, 1):  # two pixels thick
        picture[rows, columns + more] = _INK
        picture[rows + more, columns] = _INK


def _write(picture: Pixels, text: str, left: int, top: int) -> None:
    for place, digit in enumerate(text):
        rows = np.array([[cell == "1" for cell in row] for row in _DIGITS[digit]])
        large = rows.repeat(_SCALE, axis=0).repeat(_SCALE, axis=1)
        begin = left + place * (large.shape[1] + 2)
        picture[top : top + large.shape[0], begin : begin + large.shape[1]][large] = _INK
