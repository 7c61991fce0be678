"""Make each seeded fault in a copy of the tree, and see whether its tests fail."""

from __future__ import annotations

import argparse
import queue
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

from tests.faults.seeded import Fault, chosen, read
from tests.faults.trials import FAILED, PASSED, Tree, TrialError

T = TypeVar("T")

_WIDTHS = "{:<8} {:<8} {:>7}  {}"


@dataclass(frozen=True, slots=True)
class Trial:
    """What the tests of a fault said."""

    fault: Fault
    caught_by: str | None
    """Node id of the first test that failed."""
    why_not: str | None
    seconds: float


def main() -> int:
    """Print a line per fault; return 0 if all are caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="ids of faults, or areas; all without any")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="copies of the tree to work in")
    parser.add_argument("--check", action="store_true", help="only see whether the list fits the tree")
    options = parser.parse_args()
    try:
        faults = chosen(read(Path(__file__).parent), options.names)
    except ValueError as error:
        parser.error(str(error))
    if problems := [f"{fault.id}: {problem}" for fault in faults if (problem := fault.problem())]:
        parser.error("the list no longer fits the tree:\n" + "\n".join(problems))
    if options.check:
        print(f"{len(faults)} faults fit the tree")
        return 0
    print(_WIDTHS.format("id", "caught", "seconds", "by"))
    caught = 0
    for trial in _trials(faults, options.jobs):
        caught += trial.caught_by is not None
        by = trial.caught_by or f"{trial.why_not} ({trial.fault.what})"
        answer = "NO" if trial.caught_by is None else "yes"
        print(_WIDTHS.format(trial.fault.id, answer, f"{trial.seconds:.1f}", by), flush=True)
    print(f"{caught} of {len(faults)} caught")
    return 0 if caught == len(faults) else 1


def _trials(faults: list[Fault], jobs: int) -> Iterator[Trial]:
    """Yield the outcome of each fault, in their order."""
    with (
        tempfile.TemporaryDirectory(prefix="tinkergym-faults-") as folder,
        ThreadPoolExecutor(jobs) as threads,
    ):
        trees: queue.Queue[Tree] = queue.Queue()
        for number in range(jobs):
            trees.put(Tree(Path(folder) / str(number)))

        def in_a_tree(work: Callable[[Tree], T]) -> Future[T]:
            def done() -> T:
                tree = trees.get()
                try:
                    return work(tree)
                finally:
                    trees.put(tree)

            return threads.submit(done)

        # All tests of a file in one run: most of the time goes into starting.
        files: dict[str, dict[str, None]] = {}
        for test in (test for fault in faults for test in fault.tests):
            files.setdefault(test.partition("::")[0], {})[test] = None
        shares = [list(chain.from_iterable(list(files.values())[number::jobs])) for number in range(jobs)]
        begun = [in_a_tree(partial(Tree.run, tests=share, to_the_end=True)) for share in shares if share]
        without = {test: verdict for run in begun for test, verdict in run.result().items()}
        tried = [in_a_tree(partial(_trial, fault, without)) for fault in faults]
        for trial in tried:
            yield trial.result()


def _trial(fault: Fault, without: dict[str, str], tree: Tree) -> Trial:
    begun = time.monotonic()
    for test, verdict in without.items():
        if verdict != PASSED and (test in fault.tests or test.partition("[")[0] in fault.tests):
            return Trial(fault, None, f"without the fault, {test}: {verdict}", 0.0)
    with tree.changed(fault):
        try:
            verdicts = tree.run(fault.tests)
        except TrialError as error:
            verdicts = {str(error): str(error)}
    by = next((test for test, verdict in verdicts.items() if verdict == FAILED), None)
    why_not = next((verdict for verdict in verdicts.values() if verdict != PASSED), "its tests pass")
    return Trial(fault, by, None if by else why_not, time.monotonic() - begun)


if __name__ == "__main__":
    sys.exit(main())
