"""A tool with every kind of annotation."""

import enum
from typing import Literal, Optional

from pydantic import BaseModel

import tinkergym as tg


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    title: str = "here"


@tg.tool
def paint(
    colour: Colour,
    points: list[Point],
    times: int = 1,
    share: float = 0.5,
    wet: bool = False,
    style: Literal["dots", "lines"] = "dots",
    note: Optional[str] = None,  # noqa: UP045 - older code writes it so
    json: dict[str, int] | None = None,
):
    """Paint points.

    They stay painted.

    Args:
        colour: Of the paint.
        points (list): Where to paint,
            in pixels: left first.
        share:

    Returns:
        What was painted.
    """
    return {"colour": colour, "points": points, "times": times, "json": json}


def annotated(annotation):
    def function(value):
        """Take a value."""

    function.__annotations__["value"] = annotation
    return function
