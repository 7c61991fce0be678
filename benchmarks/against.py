"""This tree against earlier ones: the time of a training step, in pairs on one machine.

`python -m benchmarks.against FOLDER [FOLDER ...] [--rounds N]`, where each folder is a checkout of another
commit whose `.venv` is complete. The services of all trees stand side by side with a model in memory and
train one job each in turn, so that the jobs of a pair are about half a minute apart. A job runs alone.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.common import Figure, commit_of, paired_ratio, write_result
from benchmarks.comparators import step_server

_MOST = 1.05
_STEPS = 10
_ROUNDS = 12
_STOP_SECONDS = 120.0
_HERE = Path(__file__).parent.parent


def main() -> int:
    """Measure, write the result, and say whether the goals were reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help=f"pairs (default: {_ROUNDS})")
    wanted = parser.parse_args()
    with ExitStack() as stack:
        trees = [stack.enter_context(_Tree(folder.resolve())) for folder in (_HERE, *wanted.folders)]
        for tree in trees:
            tree.warm_up()
        for number in range(wanted.rounds):
            for adapter in step_server.ADAPTERS:
                # The first of a round may find the machine otherwise than the last.
                for tree in random.Random(number).sample(trees, len(trees)):
                    tree.train(adapter)
            print(*(f"{tree.commit} {tree.last()}" for tree in trees), sep="   ", flush=True)
    figures = [_figure(adapter, trees[0], tree) for tree in trees[1:] for adapter in step_server.ADAPTERS]
    write_result(
        "against",
        figures,
        {"step_seconds": {tree.commit: tree.seconds for tree in trees}, "steps": _STEPS},
        command="python -m benchmarks.against " + " ".join(tree.commit for tree in trees[1:]),
    )
    for figure in figures:
        print(f"{figure.what}: {figure.measured}")
    return 0 if all(figure.reached for figure in figures) else 1


class _Tree:
    """A checkout with its own service, which trains when it is asked."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.commit = folder, commit_of(folder)
        self.seconds: dict[str, list[float]] = {adapter: [] for adapter in step_server.ADAPTERS}

    def __enter__(self) -> _Tree:
        self._process = subprocess.Popen(
            [self._folder / ".venv" / "bin" / "python", step_server.__file__],
            cwd=self._folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=_STOP_SECONDS)

    def warm_up(self) -> None:
        """Load and compile."""
        for adapter, seconds in self.seconds.items():
            self.train(adapter)
            seconds.clear()

    def train(self, adapter: str) -> None:
        """Train one job and keep the median time of its steps."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"adapter": adapter, "steps": _STEPS}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the service of {self._folder} ended; what it said stands above")
        self.seconds[adapter].append(float(answer))

    def last(self) -> dict[str, Any]:
        """The newest time for each adapter."""
        return {adapter: round(seconds[-1], 3) for adapter, seconds in self.seconds.items()}


def _figure(adapter: str, ours: _Tree, other: _Tree) -> Figure:
    times, other_times = ours.seconds[adapter], other.seconds[adapter]
    ratio = paired_ratio(times, other_times)
    logs = [math.log(one / two) for one, two in zip(times, other_times, strict=True)]
    mean = math.exp(statistics.mean(logs))
    error = mean * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
    return Figure(
        what=f"a step with {adapter}, against {other.commit}",
        asked=f"<= {_MOST} x its time",
        measured=f"{ratio:.2f} x (median of {len(logs)} pairs; mean {mean:.3f}, standard error {error:.3f})",
        reached=ratio <= _MOST,
        margin=_MOST / ratio,
    )


if __name__ == "__main__":
    raise SystemExit(main())
