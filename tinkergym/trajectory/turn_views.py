"""How an environment shows its state to people who watch: a board, a grid, a map, a table or an image.

Data only. A policy does not see it, and nothing is trained on it. Environments declare it in `info["view"]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from tinkergym.trajectory.bounded_numbers import Record

_Row = Annotated[str, Field(max_length=64)]
_Rows = Annotated[list[_Row], Field(min_length=1, max_length=64)]
_Text = Annotated[str, Field(max_length=200)]
_Place = Annotated[int, Field(ge=0, lt=200)]
_Cell = tuple[Annotated[int, Field(ge=0, lt=64)], Annotated[int, Field(ge=0, lt=64)]]


class BoardView(Record):
    """A board game: one character per cell, `.` and space are empty."""

    kind: Literal["board"]
    title: _Text = ""
    rows: _Rows
    last: _Cell | None = None
    """Row and column of the last move, from 0."""


class GridView(Record):
    """A world of cells: one character each."""

    kind: Literal["grid"]
    title: _Text = ""
    rows: _Rows
    legend: dict[Annotated[str, Field(max_length=1)], _Text] = Field({}, max_length=64)
    """What a character means."""


class MapView(Record):
    """Places, ways between them, and where the policy is."""

    kind: Literal["map"]
    title: _Text = ""
    places: Annotated[list[_Text], Field(min_length=1, max_length=200)]
    at: _Place | None = None
    ways: list[tuple[_Place, _Place]] = Field([], max_length=400)
    """Pairs of places."""


class TableView(Record):
    """Rows of texts."""

    kind: Literal["table"]
    title: _Text = ""
    columns: list[_Text] = Field([], max_length=20)
    rows: Annotated[list[Annotated[list[_Text], Field(max_length=20)]], Field(max_length=200)]


class ImageView(Record):
    """A picture that the policy does not see."""

    kind: Literal["image"]
    title: _Text = ""
    png: Annotated[str, Field(pattern=r"^iVBORw0KGgo[A-Za-z0-9+/]*={0,2}$", max_length=400_000)]
    """A PNG file in base64."""


View = Annotated[BoardView | GridView | MapView | TableView | ImageView, Field(discriminator="kind")]

_VIEW: TypeAdapter[View] = TypeAdapter(View)
_KINDS = frozenset({"board", "grid", "map", "table", "image"})


def view_in(info: Any) -> View | None:
    """Return the view in an environment's info; None if there is none.

    Raises:
        ValueError: It is of a known kind, but not a valid one.
    """
    given = info.get("view") if isinstance(info, Mapping) else None
    # Other environments may use the name for something else.
    if not isinstance(given, Mapping) or given.get("kind") not in _KINDS:
        return None
    try:
        return _VIEW.validate_python(dict(given))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"info['view'] is not valid at {where}: {first['msg']}") from None
