"""Generate small games from ALFWorld's own domain, grammar and rooms.

Seeded: the same arguments and the same version of alfworld give the same files, byte for byte. Every game is
played to its end on the real engine before it is kept. They are not ALFWorld's benchmark, and a manifest in
the folder says so.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from tinkergym.errors import EnvironmentInfrastructureError, InvalidRequestError
from tinkergym_alfworld.catalogue import Catalogue, packaged
from tinkergym_alfworld.engine import EngineProcess, refuse_missing_packages
from tinkergym_alfworld.games import GAME_FILE, MANIFEST, SUBFOLDER, TASK_FILE, TASK_TYPES
from tinkergym_alfworld.made_game import MadeGame, draw_game, mangled, problem_of, walkthrough

VERSION = 1
"""Version of the generator: a different one generates different games for a seed."""
SPLITS = ("train", "valid_seen", "valid_unseen")
ROOM_KINDS = ("Bathroom", "Bedroom", "Kitchen", "LivingRoom")
_MOST_DRAWS = 200
"""Attempts per game."""
_GRAMMAR = 'Your task is to: {sentence}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to generate."""

    train: int = 64
    """Games of each task type for training."""
    valid: int = 16
    """Games of each task type for `valid_seen`, and as many for `valid_unseen`."""
    task_types: tuple[str, ...] = TASK_TYPES
    room_kinds: tuple[str, ...] = ROOM_KINDS
    """Kinds of rooms. One kind has fewer words than all."""
    most_receptacles: int = 6
    """Limit per room. Larger rooms are harder, longer to describe and slower."""
    most_others: int | None = None
    """Limit per room for objects that the task does not need; None: no limit."""
    seed: int = 0


def made_games(folder: Path, wanted: Wanted) -> Path:
    """Generate games, unless they exist already, and return the folder for `ALFWORLD_DATA`.

    Args:
        folder: The target folder, which is written atomically.
        wanted: What to generate.

    Raises:
        InvalidRequestError: The folder contains something else, or what is wanted does not exist.
        InvalidEnvironmentError: ALFWorld is not installed.
    """
    if not set(wanted.task_types) <= set(TASK_TYPES):
        raise InvalidRequestError(f"choose from {', '.join(TASK_TYPES)}", field="task_types")
    if not set(wanted.room_kinds) <= set(ROOM_KINDS):
        raise InvalidRequestError(f"choose from {', '.join(ROOM_KINDS)}", field="room_kinds")
    for field in ("train", "valid", "most_receptacles", "most_others"):
        number = getattr(wanted, field)
        whole = isinstance(number, int) and not isinstance(number, bool) and number >= 0
        if not whole and (number is not None or field != "most_others"):
            raise InvalidRequestError(f"must be a whole number of at least 0, not {number!r}", field=field)
    refuse_missing_packages()
    catalogue = packaged()
    told = {"generator": VERSION, "made_from": catalogue.version, **asdict(wanted)}
    told = {name: value for name, value in json.loads(json.dumps(told)).items() if value is not None}
    if _holds(folder, told):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        made = Path(place) / "games"
        made.mkdir()
        games = _Maker(wanted, catalogue).make(made)
        manifest = {
            "what": "made by tinkergym; not ALFWorld's official games",
            "wanted": told,
            "games": games,
        }
        (made / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        try:
            made.rename(folder)
        except OSError:
            if not _holds(folder, told):  # else another process has made them meanwhile
                raise
    return folder


def _holds(folder: Path, wanted: dict[str, Any]) -> bool:
    """Whether a folder contains these games.

    Raises:
        InvalidRequestError: It contains something else.
    """
    if not folder.exists():
        return False
    if _manifest(folder).get("wanted") == wanted:
        return True
    raise InvalidRequestError(
        f"{folder} already exists and contains other games", hint="name a new folder", field="folder"
    )


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


class _Maker:
    """Draws games, plays each, and keeps those that are new and can be won."""

    def __init__(self, wanted: Wanted, catalogue: Catalogue) -> None:
        self._wanted, self._catalogue = wanted, catalogue
        self._engine = EngineProcess(call_seconds=60.0)
        self._known: set[str] = set()

    def make(self, folder: Path) -> dict[str, str]:
        """Write all games and return the digest of each problem, by path."""
        found: dict[str, str] = {}
        try:
            for split in SPLITS:
                count = self._wanted.train if split == "train" else self._wanted.valid
                for task_type in self._wanted.task_types:
                    found |= self._of_type(folder, split, task_type, count)
        finally:
            self._engine.close()
        return found

    def _of_type(self, folder: Path, split: str, task_type: str, count: int) -> dict[str, str]:
        every = self._catalogue.unseen if split == "valid_unseen" else self._catalogue.seen
        kinds = self._catalogue.rooms_for[task_type] & set(self._wanted.room_kinds)
        if not kinds:
            raise InvalidRequestError(
                f"no {' or '.join(self._wanted.room_kinds) or 'room'} has games of {task_type}",
                hint=f"it needs {' or '.join(sorted(self._catalogue.rooms_for[task_type]))}",
                field="room_kinds",
            )
        rooms = [room for room in every if room.kind in kinds]
        found: dict[str, str] = {}
        for draw in range(_MOST_DRAWS * count):
            if len(found) == count:
                return found
            rng = random.Random(f"{self._wanted.seed}/{split}/{task_type}/{draw}")
            game = draw_game(
                task_type,
                rooms,
                self._catalogue,
                rng,
                most_receptacles=self._wanted.most_receptacles,
                most_others=self._wanted.most_others,
            )
            if game is None:
                continue
            problem = problem_of(game, self._catalogue)
            digest = sha256(problem.encode()).hexdigest()
            if digest in self._known or (way := self._way_to_win(game, problem)) is None:
                continue
            self._known.add(digest)
            name = f"{task_type}-{game.target}-None-{game.place}-{game.room}"
            path = f"{SUBFOLDER}/{split}/{name}/trial_{draw:05}"
            _write(folder / path, game, problem, way)
            found[path] = digest
        if len(found) < count:
            raise InvalidRequestError(
                f"only {len(found)} of {count} games of {task_type} could be generated for {split}",
                hint="allow more receptacles, or generate fewer games",
                field="most_receptacles",
            )
        return found

    def _way_to_win(self, game: MadeGame, problem: str) -> list[str] | None:
        """Return the commands with which the engine reports a win; None if it does not."""
        ids = [mangled(one.id) for one in game.receptacles] + [mangled(one.id) for one in game.things]
        try:
            shown = self._engine.ask("load", problem=problem, task=game.sentence)
            names = self._engine.ask("names", ids=ids)
            way = walkthrough(game, lambda one: str(names[mangled(one)]), self._catalogue.openable)
            for command in way:
                if shown["won"] or command not in shown["commands"]:
                    return None
                shown = self._engine.ask("step", command=command)
        except EnvironmentInfrastructureError:
            return None  # drawing again is better than examining a problem that the engine cannot play
        return way if shown["won"] else None


def _write(folder: Path, game: MadeGame, problem: str, way: Sequence[str]) -> None:
    folder.mkdir(parents=True)
    lamp = game.place if game.task_type == "look_at_obj_in_light" else ""
    task = {
        "origin": "made by tinkergym; not official ALFWorld data",
        "task_type": game.task_type,
        "pddl_params": {
            "object_target": game.target,
            "parent_target": "" if lamp else game.place,
            "toggle_target": lamp,
            "mrecep_target": "",
            "object_sliced": False,
        },
        "turk_annotations": {"anns": [{"task_desc": game.sentence}]},
    }
    # As in official games, but without their copies of domain and grammar: the package's own are used.
    made = {
        "pddl_problem": problem,
        "grammar": _GRAMMAR.format(sentence=game.sentence),
        "solvable": True,
        "walkthrough": list(way),
    }
    (folder / TASK_FILE).write_text(json.dumps(task, indent=1) + "\n", encoding="utf-8")
    (folder / GAME_FILE).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Generate games as the command line asks."""
    default = Wanted()
    parser = argparse.ArgumentParser(prog="python -m tinkergym_alfworld.make_games", description=__doc__)
    parser.add_argument("folder", type=Path, help="a new folder, to which ALFWORLD_DATA must then be set")
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--train", type=int, default=default.train, help="games of each task type")
    parser.add_argument("--valid", type=int, default=default.valid, help="the same, seen and unseen each")
    parser.add_argument("--most-receptacles", type=int, default=default.most_receptacles)
    parser.add_argument("--most-others", type=int, help="objects that the task does not need, per room")
    parser.add_argument("--task-types", nargs="+", choices=TASK_TYPES, default=list(TASK_TYPES))
    parser.add_argument("--room-kinds", nargs="+", choices=ROOM_KINDS, default=list(ROOM_KINDS))
    given = parser.parse_args(arguments)
    wanted = Wanted(
        train=given.train,
        valid=given.valid,
        task_types=tuple(given.task_types),
        room_kinds=tuple(given.room_kinds),
        most_receptacles=given.most_receptacles,
        most_others=given.most_others,
        seed=given.seed,
    )
    folder = made_games(given.folder, wanted)
    print(f"the games are in {folder}; export ALFWORLD_DATA={folder.resolve()}", file=sys.stderr)


if __name__ == "__main__":
    main()
