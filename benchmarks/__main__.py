"""`python -m benchmarks [NAME ...]`: measure figures, print one table, write `benchmarks/results/`."""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback

from rich.console import Console
from rich.table import Table

from benchmarks.common import Figure
from benchmarks.figure_table import README, with_figures

# Cheapest first, so that a mistake shows early.
NAMES = (
    "import_time",
    "loop",
    "cold_start",
    "remote_env",
    "bench_engine",
    "determinism",
    "tictactoe",
    "gomoku",
    "arithmetic",
    "shuffled",
)


def main() -> int:
    """Run the named benchmarks, or all; the exit status counts those that crashed or fell short."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {', '.join(NAMES)} (default: all)")
    parser.add_argument(
        "--readme", action="store_true", help="measure nothing; write the README's table from the results"
    )
    arguments = parser.parse_args()
    if arguments.readme:
        README.write_text(with_figures(README.read_text(), list(NAMES)))
        return 0
    names = arguments.names or list(NAMES)
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are: {', '.join(NAMES)}")
    figures: list[Figure] = []
    for name in names:
        print(f"--- {name}", flush=True)
        try:
            figures += importlib.import_module(f"benchmarks.{name}").measure()
        except Exception:  # One benchmark's crash is a row in the table, not the end of the others.
            traceback.print_exc()
            figures.append(Figure(what=name, asked="-", measured="crashed, see above", reached=False))
    table = Table("figure", "asked", "measured", "")
    for figure in figures:
        table.add_row(figure.what, figure.asked, figure.measured, "ok" if figure.reached else "SHORT")
    Console(width=140).print(table)
    return sum(not figure.reached for figure in figures)


if __name__ == "__main__":
    sys.exit(main())
