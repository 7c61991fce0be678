"""The games' files: ALFWorld's folder, its splits, and a game as a task."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, get_args

from tinkergym.errors import InvalidEnvironmentError, InvalidRequestError
from tinkergym.tasks import TaskSource

Split = Literal["train", "valid_seen", "valid_unseen"]
Games = Literal["official", "made"]

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
FOLDER_VARIABLE = "ALFWORLD_DATA"
SUBFOLDER = "json_2.1.1"
MANIFEST = "made_games.json"
"""Marks a folder of generated games, so that they are never mistaken for the official ones."""
GAME_FILE, TASK_FILE = "game.tw-pddl", "traj_data.json"

# No characters that could end the sentence in a grammar, or begin an expression there.
_TASK = re.compile(r"Your task is to: ([A-Za-z0-9 ,.'-]{1,200})\"")
_SOLVABLE = re.compile(r'"solvable":\s*true')


class GameTasks(TaskSource):
    """The games of one split, in the order of their paths.

    Read from the folder set by `ALFWORLD_DATA` on the machine that plays; a job cannot name a different one.
    As in ALFWorld, games not marked as solvable and games with sliced objects or movable receptacles are left
    out.
    """

    splits = get_args(Split)

    def __init__(self, *, games: Games, split: Split, task_types: Sequence[str] | None) -> None:
        """Find the games.

        Args:
            games: The kind of games there.
            split: Part of the data.
            task_types: Only these task types; None means all six.

        Raises:
            InvalidEnvironmentError: The folder is missing, has no such games, or has the other kind.
            InvalidRequestError: The split or task type does not exist.
        """
        if split not in self.splits:
            raise InvalidRequestError(
                f"there is no split {split!r}", hint=f"choose from {', '.join(self.splits)}", field="split"
            )
        self.split: str | None = split
        self._games = games
        self._task_types = tuple(_known_types(task_types))
        self._folder = _folder_of(games)
        if not (self._folder / SUBFOLDER / split).is_dir():
            raise InvalidEnvironmentError(
                f"{self._folder / SUBFOLDER} has no split {split}", hint=_HINTS[games], field="split"
            )

    @property
    def name(self) -> str:
        """Describe these games."""
        return f"{self._games} ALFWorld games ({', '.join(self._task_types)})"

    @property
    def fingerprint(self) -> str:
        """Digest of the games' paths and contents."""
        digest = sha256()
        for path, _ in self._listed():
            digest.update(path.encode() + b"\0" + (self._folder / path / GAME_FILE).read_bytes())
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self._listed())

    def read(self, index: int) -> dict[str, Any]:
        """Return a game: its path, task type, sentence, problem and, if it has one, a solution.

        Raises:
            InvalidRequestError: The file is not a game.
        """
        path, task_type = self._listed()[index]
        file = self._folder / path / GAME_FILE
        try:
            game = json.loads(file.read_text(encoding="utf-8"))
            sentence = _TASK.search(game["grammar"])
            problem = game["pddl_problem"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise InvalidRequestError(f"{file} is not a game of ALFWorld: {error!r}") from None
        if sentence is None or not isinstance(problem, str):
            raise InvalidRequestError(f"{file} is not a game of ALFWorld: it does not contain a task")
        way = game.get("walkthrough") or []
        if not isinstance(way, list) or not all(isinstance(command, str) for command in way):
            raise InvalidRequestError(
                f"{file} is not a game of ALFWorld: its walkthrough is not a list of commands",
                field="walkthrough",
            )
        return {
            "game": path,
            "task_type": task_type,
            "task": sentence[1].strip(),
            "problem": problem,
            "walkthrough": way,
        }

    def _listed(self) -> tuple[tuple[str, str], ...]:
        listed = _games_in(str(self._folder), str(self.split))
        chosen = tuple(game for game in listed if game[1] in self._task_types)
        if not chosen:
            raise InvalidEnvironmentError(
                f"{self._folder / SUBFOLDER / str(self.split)} has no game of {', '.join(self._task_types)}",
                hint=_HINTS[self._games],
                field="task_types",
            )
        return chosen


_HINTS = {
    "official": "run `alfworld-download`, which fetches the official games",
    "made": "make small games with `python -m tinkergym_alfworld.make_games FOLDER`",
}


def _folder_of(games: Games) -> Path:
    if games not in get_args(Games):
        raise InvalidRequestError(f"must be one of {', '.join(get_args(Games))}", field="games")
    named = os.environ.get(FOLDER_VARIABLE, "")
    folder = Path(named)
    if not named or not folder.is_dir():
        raise InvalidEnvironmentError(
            f"{FOLDER_VARIABLE} is not set to a folder"
            if not named
            else f"{FOLDER_VARIABLE}: there is no {folder}",
            hint=f"{_HINTS[games]}; then set {FOLDER_VARIABLE} in the process that plays the environment",
            field="environment",
        )
    made = (folder / MANIFEST).exists()
    if made != (games == "made"):
        kind = "made games, not the official ones" if made else "no made games"
        raise InvalidEnvironmentError(
            f"{folder} holds {kind}",
            hint=f"pass games='{'made' if made else 'official'}', or set {FOLDER_VARIABLE} to another folder",
            field="games",
        )
    return folder


def _known_types(given: Sequence[str] | None) -> Sequence[str]:
    if given is None:
        return TASK_TYPES
    names = [given] if isinstance(given, str) else list(given)
    unknown = [name for name in names if name not in TASK_TYPES]
    if unknown or not names:
        raise InvalidRequestError(
            f"there is no task type {unknown[0]!r}" if unknown else "no task type is named",
            hint=f"choose from {', '.join(TASK_TYPES)}",
            field="task_types",
        )
    return names


@lru_cache(maxsize=64)
def _games_in(folder: str, split: str) -> tuple[tuple[str, str], ...]:
    """Return the paths and task types of a split's games; cached, because thousands of files are read."""
    found = []
    for file in sorted((Path(folder) / SUBFOLDER / split).rglob(TASK_FILE)):
        path = file.parent.relative_to(folder).as_posix()
        game = file.parent / GAME_FILE
        if "movable" in path or "Sliced" in path or not game.exists():
            continue
        try:
            task_type = json.loads(file.read_text(encoding="utf-8"))["task_type"]
            solvable = _SOLVABLE.search(game.read_text(encoding="utf-8")) is not None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise InvalidRequestError(f"{file.parent} is not a game of ALFWorld: {error!r}") from None
        if task_type in TASK_TYPES and solvable:
            found.append((path, str(task_type)))
    return tuple(found)
