"""Options of `tinkergym eval` for games, and what other commands for games do alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinkergym.cli.console import out
from tinkergym.errors import MissingExtraError


@dataclass(frozen=True, slots=True, kw_only=True)
class GameOptions:
    """The command line's options for games."""

    crossplay: str
    others: str | None
    pairs: int
    png: Path | None
    seed: int
    temperature: float | None
    template_variables: Mapping[str, Any]
    as_json: bool


def names_in(given: str | None) -> list[str]:
    """Return the names in a list with commas."""
    return [name.strip() for name in (given or "").split(",") if name.strip()]


def drawn(draw: Callable[[Path], Path], path: Path) -> Path:
    """Draw a picture for `--png`.

    Raises:
        MissingExtraError: Nothing that draws is installed; the field is the option.
    """
    try:
        return draw(path)
    except MissingExtraError as error:
        error.field = "--png"
        raise


def say_picture(path: Path) -> None:
    """Print where a picture is."""
    out.print(f"picture: {path}", markup=False, highlight=False, soft_wrap=True)
