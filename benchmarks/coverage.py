"""How often the 95 % intervals contain the truth: means, pass@k, comparisons and ratings, by simulation.

Each case draws results of a known truth 2,000 times and asks the functions that `tinkergym eval`, `compare`
and `--crossplay` ask. One core, about three minutes, no service.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.common import Figure, write_result
from tinkergym.evaluation.differences import paired_difference
from tinkergym.evaluation.ratings import ELO, PairScore, rate
from tinkergym.evaluation.statistics import Interval, clustered_interval, mean_interval, pass_at_k, pass_hat_k

REPEATS = 2000
RESAMPLES = 200
"""Of the ratings' bootstrap; fewer than `rate` takes, which makes no difference to coverage."""
LOW, HIGH = 0.93, 0.97
FEW, SKEWED = "few outcomes", "skewed"
SEED = 7

Draw = Callable[[np.random.Generator], Interval]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Results with a known truth."""

    of: str
    """Which interval: `means`, `pass@k`, `compare` or `ratings`."""
    what: str
    truth: float
    draw: Draw
    """Draws results and returns their interval."""
    limit: str = ""
    """Why no interval can hold in 93 to 97 %: `few outcomes`, for which it is wider, or `skewed`."""


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
    write_result(
        "coverage", figures, {"repeats": REPEATS, "seed": SEED, "cases": [asdict(one) for one in found]}
    )
    return figures


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


def table(found: Sequence[dict[str, Any]]) -> str:
    """Return the cases of the result file as a Markdown table."""
    lines = ["| interval | results | coverage | |", "|---|---|---|---|"]
    for one in found:
        lines.append(f"| {one['of']} | {one['what']} | {100 * one['coverage']:.1f} % | {one['limit']} |")
    return "\n".join(lines) + "\n"


def _figure(of: str, found: Sequence[Covered]) -> Figure:
    named = {limit: [one.coverage for one in found if one.limit == limit] for limit in ("", FEW, SKEWED)}
    parts = [
        f"{100 * min(some):.1f} to {100 * max(some):.1f} % in {len(some)} {limit} cases".replace("  ", " ")
        for limit, some in named.items()
        if some
    ]
    return Figure(
        what=f"how often the 95 % intervals of {of} contain the truth, {REPEATS:,} repeats each",
        asked="93 to 97 %",
        measured="; ".join(parts),
        reached=all(one.as_promised for one in found),
    )


def cases() -> Iterator[Case]:
    """Yield all cases."""
    yield from _means()
    yield from _passes()
    yield from _comparisons()
    yield from _ratings()


def _means() -> Iterator[Case]:
    for tasks, rate_ in ((10, 0.5), (30, 0.9), (64, 0.05), (200, 0.02), (32, 0.02)):
        yield _mean(
            f"{tasks} tasks, solved with {rate_}",
            rate_,
            lambda g, n=tasks, p=rate_: g.binomial(1, p, (n, 1)),
            limit=FEW if rate_ in {0.5, 0.9} or tasks == 32 else "",
        )
    for tasks, samples, rate_ in ((32, 4, 0.02), (32, 4, 0.05), (100, 2, 0.02)):
        draw = lambda g, n=tasks, m=samples, p=rate_: g.binomial(1, p, (n, m))
        yield _mean(f"{tasks} tasks x {samples} episodes, solved with {rate_}", rate_, draw)
    for tasks, samples, a, b in ((32, 4, 0.5, 1.0), (8, 8, 0.5, 1.0), (32, 4, 0.1, 2.0), (100, 2, 0.1, 1.0)):
        draw = lambda g, n=tasks, m=samples, a=a, b=b: g.random((n, m)) < g.beta(a, b, (n, 1))
        yield _mean(
            f"{tasks} tasks x {samples} episodes, tasks solved with Beta({a:g}, {b:g})",
            a / (a + b),
            draw,
            limit=FEW if tasks == 8 else "",
        )
    shares, weights = np.array([0.0, 0.25, 0.5, 1.0]), [0.85, 0.08, 0.04, 0.03]
    for tasks in (32, 100):
        draw = lambda g, n=tasks: g.choice(shares, p=weights, size=(n, 1))
        yield _mean(f"{tasks} tasks, partial scores, 85 % of them 0", float(shares @ weights), draw)
    for tasks in (2, 5, 10, 30, 200):
        yield _mean(f"{tasks} tasks, normal returns", 0.3, lambda g, n=tasks: g.normal(0.3, 1, (n, 1)))
    for tasks, samples in ((4, 8), (8, 8), (32, 4)):
        draw = lambda g, n=tasks, m=samples: g.normal(0, 1, (n, 1)) + g.normal(0, 1, (n, m))
        yield _mean(f"{tasks} tasks x {samples} episodes, normal returns", 0.0, draw)
    for tasks in (10, 32, 100):
        draw = lambda g, n=tasks: g.exponential(1, (n, 1))
        yield _mean(f"{tasks} tasks, exponential returns", 1.0, draw, limit="" if tasks >= 100 else SKEWED)
    yield _mean("5 tasks, solved with 0.1", 0.1, lambda g: g.binomial(1, 0.1, (5, 1)), limit=FEW)


def _mean(what: str, truth: float, draw: Callable[[np.random.Generator], Any], *, limit: str = "") -> Case:
    return Case(
        of="means",
        what=what,
        truth=truth,
        draw=lambda g: clustered_interval(np.asarray(draw(g), dtype=float).tolist()),
        limit=limit,
    )


def _passes() -> Iterator[Case]:
    for samples, k, rate_ in ((8, 4, 0.02), (4, 2, 0.1), (8, 4, 0.1), (16, 4, 0.02)):
        draw = lambda g, p=rate_: np.full(32, p)
        yield _pass(
            f"pass@{k} of {samples}, 32 tasks, solved with {rate_}",
            samples,
            k,
            pass_at_k,
            draw,
            1 - (1 - rate_) ** k,
            limit=FEW if (samples, rate_) == (8, 0.02) else "",
        )
    for name, estimate in (("pass@", pass_at_k), ("pass^", pass_hat_k)):
        for samples, k, tasks in ((4, 2, 32), (8, 4, 32), (8, 8, 32), (8, 4, 10)):
            # The rate of a task has the distribution Beta(0.5, 1), whose moments are products.
            draw = lambda g, n=tasks: g.beta(0.5, 1.0, n)
            all_pass = math.prod((0.5 + i) / (1.5 + i) for i in range(k))
            all_fail = math.prod((1.0 + i) / (1.5 + i) for i in range(k))
            truth = 1 - all_fail if estimate is pass_at_k else all_pass
            what = f"{name}{k} of {samples}, {tasks} tasks, solved with Beta(0.5, 1)"
            yield _pass(
                what,
                samples,
                k,
                estimate,
                draw,
                truth,
                limit=SKEWED if (name, k, samples, tasks) == ("pass^", 4, 8, 32) else "",
            )


def _pass(
    what: str,
    samples: int,
    k: int,
    estimate: Callable[[int, int, int], float],
    draw: Any,
    truth: float,
    *,
    limit: str,
) -> Case:
    of = [estimate(samples, successes, k) for successes in range(samples + 1)]

    def interval(g: np.random.Generator) -> Interval:
        return mean_interval([of[c] for c in g.binomial(samples, draw(g)).tolist()], bounds=(0.0, 1.0))

    return Case(of="pass@k, pass^k", what=what, truth=truth, draw=interval, limit=limit)


def _comparisons() -> Iterator[Case]:
    for tasks in (5, 10, 32, 100):
        yield _compared(
            f"{tasks} tasks, normal, no difference",
            0.0,
            lambda g, n=tasks: (np.zeros(n), g.normal(0, 0.7, n)),
        )
    for tasks, p, q in (
        (10, 0.2, 0.6),
        (32, 0.5, 0.5),
        (32, 0.05, 0.2),
        (100, 0.02, 0.1),
        (200, 0.02, 0.02),
        (32, 0.0, 0.1),
    ):
        draw = lambda g, n=tasks, p=p, q=q: (g.binomial(1, p, n), g.binomial(1, q, n))
        yield _compared(f"{tasks} tasks, solved with {p:g} and {q:g}", q - p, draw)
    for tasks, samples in ((10, 8), (32, 4), (100, 2)):

        def clustered(g: np.random.Generator, n: int = tasks, m: int = samples) -> Any:
            rates = g.beta(0.5, 1.0, n)
            return g.binomial(m, rates) / m, g.binomial(m, rates) / m

        yield _compared(
            f"{tasks} tasks x {samples} episodes, solved with Beta(0.5, 1), no difference", 0.0, clustered
        )
    for tasks in (5, 10, 32):
        draw = lambda g, n=tasks: (g.exponential(1, n), g.exponential(1, n))
        yield _compared(f"{tasks} tasks, both exponential, no difference", 0.0, draw)
    for tasks in (5, 10, 32, 100):
        draw = lambda g, n=tasks: (np.zeros(n), g.exponential(1, n))
        yield _compared(
            f"{tasks} tasks, exponential differences", 1.0, draw, limit="" if tasks >= 100 else SKEWED
        )
    draw = lambda g: (g.binomial(1, 0.5, 5), g.binomial(1, 0.5, 5))
    yield _compared("5 tasks, solved with 0.5 and 0.5", 0.0, draw, limit=FEW)


def _compared(
    what: str, truth: float, draw: Callable[[np.random.Generator], Any], *, limit: str = ""
) -> Case:
    def interval(g: np.random.Generator) -> Interval:
        first, second = draw(g)
        found = paired_difference(list(zip(first.tolist(), second.tolist(), strict=True)))
        return found.low, found.high

    return Case(of="compare", what=what, truth=truth, draw=interval, limit=limit)


def _ratings() -> Iterator[Case]:
    four, uneven = (0.0, 0.5, 1.0, -0.7), (0.0, 2.0, 3.0, 3.2)
    for strengths, draws, each in ((four, 0.3, 8), (four, 0.3, 40), (four, 0.3, 100), (uneven, 0.1, 20)):
        yield _rated(
            f"4 players, {each} pairs each, {draws:.0%} draws, strengths {strengths}", strengths, draws, each
        )
    for strength, each in ((2.0, 20), (3.0, 20)):
        yield _rated(f"2 players, {each} pairs, {strength:g} apart", (0.0, strength), 0.0, each)


def _rated(what: str, strengths: Sequence[float], draws: float, each: int) -> Case:
    """Return the case of the second player's rating, with the first as the anchor."""
    names = [str(number) for number in range(len(strengths))]

    def interval(g: np.random.Generator) -> Interval:
        pairs = []
        for one, other in itertools.combinations(range(len(strengths)), 2):
            wins = 1 / (1 + math.exp(strengths[other] - strengths[one]))
            drawn = 2 * draws * min(wins, 1 - wins)
            scores = g.choice([0.0, 0.5, 1.0], p=[1 - wins - drawn / 2, drawn, wins - drawn / 2], size=each)
            pairs += [PairScore(one=one, other=other, score=score) for score in scores.tolist()]
        seed = int(g.integers(2**31))
        found = rate(names, pairs, anchor="0", seed=seed, bootstraps=RESAMPLES)["1"]
        return found.low, found.high

    return Case(of="ratings", what=what, truth=ELO * (strengths[1] - strengths[0]), draw=interval)
