"""Shared by all commands: where they print, and how an error becomes a message and an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import typer
from rich.cells import cell_len
from rich.console import Console
from typer.core import TyperGroup

from tinkergym.cli import json_output
from tinkergym.errors import InvalidRequestError, NotFoundError, TinkerGymError

# Text often comes from users, and `:car:` in it is not an emoji.
out = Console(emoji=False)
err = Console(stderr=True, emoji=False)

WRONG_USE = 2
"""Exit code if the command line or a setting is wrong; 1 if the work itself failed."""
INTERRUPTED = 130
"""The usual exit code after Ctrl-C."""

_UsageError: Any = typer.BadParameter.__mro__[1]
"""The error for a command line that cannot be parsed; typer has no public name for it."""


class InterruptedCommandError(TinkerGymError):
    """Ctrl-C ended a command."""


class Commands(TyperGroup):
    """All commands.

    One that fails ends with a message instead of a traceback; with `--json`, also as JSON.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        as_json = json_output.is_asked_for([*getattr(ctx, "_protected_args", ()), *ctx.args])
        with json_output.only_json() if as_json else nullcontext():
            try:
                return super().invoke(ctx)
            except TinkerGymError as error:
                complain(error, as_json=as_json)
                code = WRONG_USE if isinstance(error, InvalidRequestError | NotFoundError) else 1
                raise typer.Exit(code) from None
            except BrokenPipeError:
                raise  # The reader of a pipe has closed it; typer ends quietly.
            except OSError as error:
                complain(TinkerGymError(str(error)), as_json=as_json)
                raise typer.Exit(1) from None
            except (typer.Exit, typer.Abort, KeyboardInterrupt, EOFError, _UsageError) as end:
                if as_json and (reason := _reason(end)) is not None:
                    json_output.emit_error(reason)
                if isinstance(end, KeyboardInterrupt):
                    raise typer.Exit(INTERRUPTED) from None
                raise  # typer prints the message and sets the exit code.


def _reason(end: BaseException) -> TinkerGymError | None:
    """Return why typer ends a command, or None if the command has printed its result."""
    if isinstance(end, KeyboardInterrupt) or getattr(end, "exit_code", 0) == INTERRUPTED:
        return InterruptedCommandError("Ctrl-C ended the command")
    if isinstance(end, typer.Abort | EOFError):
        return TinkerGymError("not confirmed", hint="add --yes")
    if isinstance(end, _UsageError):
        return InvalidRequestError(end.format_message(), hint="see --help")
    return None


def complain(error: TinkerGymError, *, as_json: bool = False) -> None:
    """Print an error for people: what is wrong, then what to do; with `--json`, also as JSON."""
    if as_json:
        json_output.emit_error(error)
    where = f"{error.field}: " if error.field else ""
    err.print(f"error: {where}{error.message}", style="red", markup=False, highlight=False, soft_wrap=True)
    if error.hint:
        err.print(f"  {error.hint}", markup=False, highlight=False, soft_wrap=True)


def print_rows(rows: Sequence[Sequence[str]]) -> None:
    """Print a table, header first, one line per row, however wide: rows are copied and searched.

    A table of rich's would fold what is wider than the terminal, or than 80 columns in a pipe.
    """
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        line = "  ".join(
            cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)
        )
        style = "table.header" if number == 0 else None
        out.print(line.rstrip(), style=style, markup=False, highlight=False, soft_wrap=True)
