"""The recipes of `examples/`: three seeds and controls each, held-out returns before and after.

`TINKERGYM_RECIPES=bandit,math` limits it to some; `TINKERGYM_RECIPE_SEEDS=1` to one seed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import RESULTS, Figure, Service, service, write_result
from examples.shared.recipe_picture import Run, draw

SWAPPED = {"images swapped between tasks": "swapped"}
CONTROLS = {"geometry": SWAPPED, "geometry_tools": SWAPPED}
"""Of some recipes, further controls: what they are, and the variant of the settings."""
SEEDS = 3
MINUTES = 6
"""Time limit of one run, including evaluation."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where recipes are, and where what they measure goes."""

    examples: Path = Path(__file__).parents[1] / "examples"
    pictures: Path = Path(__file__).parents[1] / "docs" / "images" / "recipes"
    results: Path = RESULTS
    service: Callable[[], AbstractContextManager[Service]] = service


PLACES = Places()


def names(places: Places) -> list[str]:
    """Return the recipes to run."""
    there = sorted(path.parent.name for path in places.examples.glob("*/train.py"))
    chosen = os.environ.get("TINKERGYM_RECIPES", "")
    return [name for name in there if name in chosen.split(",")] if chosen else there


def measure(places: Places = PLACES) -> list[Figure]:
    """Run each recipe in a fresh service, draw its picture and write its result."""
    figures: list[Figure] = []
    for name in names(places):
        try:
            figures += measure_one(name, places)
        except Exception:  # A recipe that crashes, such as one without its pack, does not stop the others.
            traceback.print_exc()
            crashed = "crashed, see above"
            figures.append(Figure(what=f"recipe {name}", asked="-", measured=crashed, reached=False))
    return figures


def measure_one(name: str, places: Places) -> list[Figure]:
    """Run one recipe with its seeds and controls."""
    seeds = range(int(os.environ.get("TINKERGYM_RECIPE_SEEDS", SEEDS)))
    script = places.examples / name / "train.py"
    with places.service() as running:
        runs = [run(running, script, "--seed", str(seed)) for seed in seeds]
        controls = {"shuffled rewards": run(running, script, "--control")}
        for what, variant in CONTROLS.get(name, {}).items():
            controls[what] = run(running, script, "--variant", variant)
    every = [*runs, *controls.values()]
    draw(every, places.pictures / f"{name}.png")
    figures = figures_of(name, runs, controls)
    return write_result(
        f"recipe_{name}",
        figures,
        {"runs": [one.as_json() for one in every]},
        command=command(name, len(runs)),
        folder=places.results,
    )


def command(name: str, seeds: int) -> str:
    """Return the command that measures one recipe."""
    limit = "" if seeds == SEEDS else f" TINKERGYM_RECIPE_SEEDS={seeds}"
    return f"TINKERGYM_RECIPES={name}{limit} python -m benchmarks recipes"


def run(running: Service, script: Path, *options: str) -> Run:
    """Run one recipe as a user does, and return its result."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, str(script), *options, "--out", out]
        subprocess.run(command, env=os.environ | running.environment, check=True)
        (result,) = Path(out).glob("*.json")
        return Run.from_json(json.loads(result.read_text(encoding="utf-8")))


def figures_of(name: str, runs: list[Run], controls: dict[str, Run]) -> list[Figure]:
    """Return for each evaluation whether it rose in time, intervals apart, and that of controls not."""
    seconds = max(one.seconds for one in runs)
    figures: list[Figure] = []
    evaluations = list(runs[0].evaluations)
    if not evaluations:
        raise ValueError(f"the recipe {name!r} has no evaluation to judge")
    for evaluation in evaluations:
        what = f"recipe {name}, {evaluation}" if len(evaluations) > 1 else f"recipe {name}"
        measured = "; ".join(change(one, evaluation) for one in runs)
        rose = all(rises(one, evaluation) for one in runs)
        figures += [
            Figure(
                what=f"{what}, held-out returns of {len(runs)} seed{'s' * (len(runs) > 1)}",
                asked=f"up, intervals apart, <= {MINUTES} min each",
                measured=f"{measured}; slowest {seconds:.0f} s",
                reached=rose and seconds <= 60 * MINUTES,
            ),
            *(
                Figure(
                    what=f"{what}, control with {how}",
                    asked="does not rise",
                    measured=change(control, evaluation),
                    reached=not rises(control, evaluation),
                )
                for how, control in controls.items()
            ),
        ]
    return figures


def rises(one: Run, evaluation: str) -> bool:
    """Return whether the last interval of an evaluation is above the first one's."""
    done = one.evaluations[evaluation]
    (_, _, _, high), (_, _, low, _) = done[0], done[-1]
    return low is not None and high is not None and low > high


def change(one: Run, evaluation: str) -> str:
    """Describe the first and the last result of an evaluation."""
    done = one.evaluations[evaluation]
    (_, before, *_), (_, after, low, high) = done[0], done[-1]
    interval = "" if low is None or high is None else f" [{low:.2f}, {high:.2f}]"
    return f"{before:.2f} -> {after:.2f}{interval}"
