"""The documentation's table of figures, generated only from the result files."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.common import RESULTS

BEGIN = "<!-- figures: written by `python -m benchmarks --docs` from benchmarks/results/ -->"
END = "<!-- end of figures -->"
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def figure_table(names: list[str]) -> str:
    """Return a Markdown table of the figures in the named result files; missing files are skipped."""
    lines = ["| figure | goal | measured | met | command |", "|---|---|---|---|---|"]
    for path in (path for name in names for path in _results(name)):
        result = json.loads(path.read_text())
        for figure in result["figures"]:
            reached = "yes" if figure["reached"] else "**no**"
            cells = [figure["what"], figure["asked"], figure["measured"], reached, f"`{result['command']}`"]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _results(name: str) -> list[Path]:
    """Return a benchmark's result files: the recipes have one each."""
    if name == "recipes":
        return sorted(RESULTS.glob("recipe_*.json"))
    path = RESULTS / f"{name}.json"
    return [path] if path.is_file() else []


def with_figures(page: str, names: list[str]) -> str:
    """Return the page's text with its table generated from the results.

    Raises:
        ValueError: The text lacks one of the two markers.
    """
    before, found, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (found and end):
        raise ValueError(f"the page needs the lines {BEGIN!r} and {END!r} around its table of figures")
    return f"{before}{BEGIN}\n\n{figure_table(names)}\n{END}{after}"
