"""`python -m benchmarks [NAME ...]`: measure figures, print a table, write `benchmarks/results/`."""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback

from rich.console import Console
from rich.table import Table

from benchmarks import chart
from benchmarks.common import Figure
from benchmarks.figure_table import PAGE, with_figures

# Cheapest first, so that mistakes show early.
NAMES = (
    "import_time",
    "loop",
    "cold_start",
    "templates",
    "data_containers",
    "run_lists",
    "scheduler_tick",
    "dashboard",
    "coverage",
    "gateway_load",
    "recovery",
    "reattach",
    "batch_inference",
    "tracker_kills",
    "agent_programs",
    "agent_program_speed",
    "agent_program_kills",
    "own_loop",
    "own_loop_kills",
    "remote_env",
    "bench_engine",
    "engine_replicas",
    "multi_turn",
    "http_sampling",
    "openai_streams",
    "learner_speed",
    "reward_accounting",
    "interleaved_games",
    "many_adapters",
    "divided",
    "parity",
    "images",
    "versus_trl",
    "tenants",
    "neighbours",
    "hostile_input",
    "scaling",
    "staleness",
    "estimate",
    "evaluation_on_the_way",
    "certificate",
    "tampering",
    "determinism",
    "first_environment",
    "tictactoe",
    "gomoku",
    "two_agents",
    "cooperative",
    "second_policy",
    "game_kills",
    "mixed_kills",
    "growth",
    "idle",
    "service_faults",
    "self_play",
    "kuhn",
    "arithmetic",
    "shuffled",
    "recipes",
)


def main() -> int:
    """Run the named benchmarks, or all; the exit status counts those that crashed or missed their goal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {', '.join(NAMES)} (default: all)")
    parser.add_argument(
        "--docs", action="store_true", help="measure nothing; write the table of docs/benchmarks.md"
    )
    parser.add_argument(
        "--chart", action="store_true", help="measure nothing; draw the chart from the results"
    )
    arguments = parser.parse_args()
    if arguments.docs:
        PAGE.write_text(with_figures(PAGE.read_text(), list(NAMES)))
        return 0
    if arguments.chart:
        _draw_chart()
        return 0
    names = arguments.names or list(NAMES)
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are: {', '.join(NAMES)}")
    figures: list[Figure] = []
    for name in names:
        print(f"--- {name}", flush=True)
        try:
            figures += importlib.import_module(f"benchmarks.{name}").measure()
        except Exception:  # A crash is a row in the table and does not stop the others.
            traceback.print_exc()
            figures.append(Figure(what=name, asked="-", measured="crashed, see above", reached=False))
    _draw_chart()
    table = Table("figure", "goal", "measured", "better than the goal by", "")
    for figure in figures:
        margin = "" if figure.margin is None else f"{figure.margin:.2f} x"
        reached = "ok" if figure.reached else "SHORT"
        table.add_row(figure.what, figure.asked, figure.measured, margin, reached)
    Console(width=140).print(table)
    return sum(not figure.reached for figure in figures)


def _draw_chart() -> None:
    try:
        path = chart.draw(list(NAMES))
    except ImportError:
        print("no chart: matplotlib is not installed (pip install '.[plot]' in a checkout of tinkergym)")
    else:
        print(f"chart: {path}" if path else "no chart: there are no results yet")


if __name__ == "__main__":
    sys.exit(main())
