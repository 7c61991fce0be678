"""What all commands share: where they print, and how an error becomes one sentence and an exit code."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from tinkergym.errors import InvalidRequestError, NotFoundError, TinkerGymError

# What is shown is often somebody's text, and `:car:` in it is no emoji.
out = Console(emoji=False)
err = Console(stderr=True, emoji=False)

WRONG_USE = 2
"""Exit code when the command line or a setting is wrong; 1 when the work itself failed."""


TopP = Annotated[
    float | None,
    typer.Option(help="Draw only among the fewest likeliest tokens of so much probability, up to 1."),
]
TopK = Annotated[int | None, typer.Option(help="Draw only among so many of the likeliest tokens; 0 is all.")]


class Commands(TyperGroup):
    """A group of commands that ends with a sentence, not a traceback, when something foreseen goes wrong."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except TinkerGymError as error:
            complain(error)
            code = WRONG_USE if isinstance(error, InvalidRequestError | NotFoundError) else 1
            raise typer.Exit(code) from None
        except BrokenPipeError:
            raise  # the reader of a pipe has seen enough; click ends quietly
        except OSError as error:
            complain(TinkerGymError(str(error)))
            raise typer.Exit(1) from None


def _env_settings(written: re.Match[str]) -> str:
    return " ".join(f"--env-set {name}=..." for name in re.findall(r"'(\w+)': \.\.\.", written[0]))


_OPTIONS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"\bon_overlong='drop'", "--drop-overlong"),
    (r"\b(rollout)='(\w+)'", r"--\1 \2"),
    (r"\b([a-z_]+\.[a-z_]+)='([^']+)'", r"--set \1=\2"),
    (r", in a script tg\.\w+\([^)]*\)", ""),
    (r"\benv_kwargs=\{'[^}]*\}", _env_settings),
    (r"\bgets env_kwargs and\b", "gets what --env-set says and"),
)
"""Settings as errors write them, in Python's words, and as a command line does."""


def typed(text: str) -> str:
    """Say the settings that a text names as they are typed here."""
    for python, here in _OPTIONS:
        text = re.sub(python, here, text)
    return text


def complain(error: TinkerGymError) -> None:
    """Print an error as people read it: what is wrong, then what to do."""
    where = f"{error.field}: " if error.field else ""
    message, hint = typed(error.message), typed(error.hint)
    err.print(f"error: {where}{message}", style="red", markup=False, highlight=False, soft_wrap=True)
    if hint:
        err.print(f"  {hint}", markup=False, highlight=False, soft_wrap=True)
