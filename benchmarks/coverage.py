"""How often the 95 % intervals contain the truth: means, pass@k, comparisons and ratings, by simulation.

Each case draws results of a known truth 2,000 times and asks the functions that `tinkergym eval`, `compare`
and `--crossplay` ask. One core, about two minutes, no service.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Figure, write_result
from benchmarks.coverage_cases import FEW, SKEWED, Case, cases

REPEATS = 2000
LOW, HIGH = 0.93, 0.97
SEED = 7
BEGIN, END = "<!-- coverage: written by this benchmark -->", "<!-- end of coverage -->"
"""Around the table of the guide."""
GUIDE = Path(__file__).parent.parent / "docs" / "guides" / "evaluation.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """What a case showed."""

    of: str
    what: str
    coverage: float
    too_high: float
    """Fraction of the intervals that lie above the truth."""
    too_low: float
    limit: str

    @property
    def as_promised(self) -> bool:
        """Whether it is within 93 and 97 %, or beyond for a reason that is named."""
        return bool(self.limit) or LOW <= round(self.coverage, 3) <= HIGH


def measure() -> list[Figure]:
    """Simulate every case; one figure for each kind of interval."""
    rng = np.random.default_rng(SEED)
    found = [simulated(case, rng) for case in cases()]
    figures = [
        _figure(of, [one for one in found if one.of == of]) for of in dict.fromkeys(c.of for c in found)
    ]
    listed = [asdict(one) for one in found]
    GUIDE.write_text(with_table(GUIDE.read_text(), listed))
    return write_result("coverage", figures, {"repeats": REPEATS, "seed": SEED, "cases": listed})


def simulated(case: Case, rng: np.random.Generator, repeats: int = REPEATS) -> Covered:
    """Return how often a case's interval contains the truth."""
    ends = np.array([case.draw(rng) for _ in range(repeats)])
    too_high, too_low = (
        float((ends[:, 0] > case.truth + 1e-9).mean()),
        float((ends[:, 1] < case.truth - 1e-9).mean()),
    )
    return Covered(
        of=case.of,
        what=case.what,
        coverage=1 - too_high - too_low,
        too_high=too_high,
        too_low=too_low,
        limit=case.limit,
    )


def with_table(page: str, found: Sequence[dict[str, Any]]) -> str:
    """Return the guide's text with the table of these cases."""
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    lines = ["| interval | results | coverage | |", "|---|---|---|---|"]
    for one in found:
        lines.append(f"| {one['of']} | {one['what']} | {100 * one['coverage']:.1f} % | {one['limit']} |")
    return "\n".join([f"{before}{BEGIN}\n", *lines, f"\n{END}{after}"])


def _figure(of: str, found: Sequence[Covered]) -> Figure:
    named = {limit: [one.coverage for one in found if one.limit == limit] for limit in ("", FEW, SKEWED)}
    parts = [
        f"{100 * min(some):.1f} to {100 * max(some):.1f} % in {len(some)} cases"
        + (f" ({limit})" if limit else "")
        for limit, some in named.items()
        if some
    ]
    return Figure(
        what=f"how often the 95 % intervals of {of} contain the truth, {REPEATS:,} repeats each",
        asked="93 to 97 %, but for few or skewed outcomes",
        measured="; ".join(parts),
        reached=all(one.as_promised for one in found),
    )
