import json
import sys
from pathlib import Path

import pytest
from tinkergym_alfworld.environment import HouseholdEnv
from tinkergym_alfworld.games import MANIFEST, SUBFOLDER

COUNTERPART = (sys.executable, str(Path(__file__).parent / "counterpart_worker.py"))


class Counterpart(HouseholdEnv):
    """The environment with a counterpart of ALFWorld's engine."""

    worker = COUNTERPART


def write_game(folder, split, name, *, task_type="pick_and_place_simple", solvable=True, trouble=None):
    """Write a game in the layout of ALFWorld's; its problem is the counterpart's."""
    where = folder / SUBFOLDER / split / name / "trial_1"
    where.mkdir(parents=True)
    house = {"places": {"desk 1": [], "bed 1": [f"mug {len(name)}"]}, "goal": [f"mug {len(name)}", "desk 1"]}
    if trouble:
        house["trouble"] = trouble
    way = [
        "go to bed 1",
        f"take mug {len(name)} from bed 1",
        "go to desk 1",
        f"move mug {len(name)} to desk 1",
    ]
    (where / "traj_data.json").write_text(json.dumps({"task_type": task_type}))
    game = {
        "pddl_problem": json.dumps(house),
        "grammar": f'intro :: "... Your task is to: put a {name} in desk."',
        "solvable": solvable,
        "walkthrough": way,
    }
    (where / "game.tw-pddl").write_text(json.dumps(game))


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write games into the folder that ALFWORLD_DATA names; `made` marks them as such."""
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))

    def write(split, name, *, made=False, **settings):
        write_game(tmp_path, split, name, **settings)
        if made:
            (tmp_path / MANIFEST).write_text("{}")
        return tmp_path

    return write


@pytest.fixture
def house(write):
    """Games in all splits."""
    for split in ("train", "valid_seen", "valid_unseen"):
        for name in ("red", "green", "blue-ish"):
            write(split, name)
    return Counterpart
