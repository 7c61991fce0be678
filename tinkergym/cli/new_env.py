"""`tinkergym new-env`: create a working pack as a starting point for your own environment."""

from __future__ import annotations

import importlib.util
import re
import shutil
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tinkergym.cli.console import out
from tinkergym.cli.json_output import AsJson, emit
from tinkergym.cli.new_env_template import NewPack
from tinkergym.errors import ConflictError, InvalidRequestError

_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_MOST_CHARACTERS = 40


class Turns(StrEnum):
    """How long an episode is."""

    SINGLE = "single"
    MULTI = "multi"


class Data(StrEnum):
    """Where tasks come from."""

    FREE = "free"
    DEPENDENT = "dependent"


def new_env(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Lower case: my-game. The name of the folder, the pack and the id."
        ),
    ],
    *,
    turns: Annotated[
        Turns, typer.Option(help="One question and one answer, or several actions.")
    ] = Turns.SINGLE,
    data: Annotated[
        Data, typer.Option(help="The seed determines the task, or tasks come from a file.")
    ] = Data.FREE,
    as_json: AsJson = False,
) -> None:
    """Write a new pack with a working environment and its test into the folder NAME.

    Example: tinkergym new-env my-game --turns multi
    """
    pack = NewPack(
        name=name,
        turns=turns.value,
        data=data.value,
    )
    _refuse_bad_name(pack)
    folder = Path(name)
    _write(folder, pack.files())
    commands = [
        f"cd {name}",
        "pip install -e .",
        "pytest",
        f"tinkergym play {pack.env_id}",
        f"tinkergym check {pack.env_id}",
        # A running service keeps the code of a pack it has loaded, and this pack is about to change.
        f"tinkergym train {pack.env_id} --model nano-instruct --steps 20 --rollout client",
    ]
    if as_json:
        files = [folder / path for path in pack.files()]
        emit({"environment": pack.env_id, "folder": folder, "files": files, "next": commands})
        return
    listed = "".join(f"  {name}/{path}\n" for path in pack.files())
    out.print(f"wrote {pack.env_id}, {pack.turns}-turn, data-{pack.data}:\n{listed}", highlight=False)
    out.print("next:\n" + "\n".join(f"  {command}" for command in commands), highlight=False, soft_wrap=True)


def _refuse_bad_name(pack: NewPack) -> None:
    if not _NAME.fullmatch(pack.name) or len(pack.name) > _MOST_CHARACTERS:
        raise InvalidRequestError(
            f"{pack.name!r} is not a valid pack name",
            hint=f"use lower-case letters, digits and single dashes, at most {_MOST_CHARACTERS}: my-game",
            field="NAME",
        )
    if importlib.util.find_spec(pack.package) is not None:
        raise InvalidRequestError(
            f"a package {pack.package} is already installed", hint="choose another name", field="NAME"
        )


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write all files or none.

    Raises:
        ConflictError: The folder exists already.
    """
    try:
        folder.mkdir()
    except FileExistsError:
        raise ConflictError(
            f"{folder}/ exists already; nothing was written",
            hint="choose another name, or remove it first",
            field="NAME",
        ) from None
    try:
        for path, text in files.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except BaseException:  # After Ctrl-C or on a full disk, leave no partial pack.
        with suppress(OSError):
            shutil.rmtree(folder)
        raise
