"""Results of a known truth, whose intervals `coverage` simulates: means, pass@k, comparisons and ratings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from tinkergym.evaluation.differences import paired_difference
from tinkergym.evaluation.ratings import ELO, PairScore, rate
from tinkergym.evaluation.statistics import Interval, clustered_interval, mean_interval, pass_at_k, pass_hat_k

FEW, SKEWED = "few outcomes", "skewed"
_RESAMPLES = 200
"""Of the ratings' bootstrap; fewer than `rate` takes, to save time."""

Array = npt.NDArray[np.float64]
Results = Callable[[np.random.Generator], Array]
"""Draws the results of all tasks, a row for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Results with a known truth."""

    of: str
    """Which interval: `means`, `pass@k`, `compare` or `ratings`."""
    what: str
    truth: float
    draw: Callable[[np.random.Generator], Interval]
    """Draws results and returns their interval."""
    limit: str = ""
    """Why the interval is not expected to hold in 93 to 97 %: `few outcomes` or `skewed`."""


def cases() -> Iterator[Case]:
    """Yield all cases."""
    yield from _means()
    yield from _passes()
    yield from _comparisons()
    yield from _ratings()


def _solved(tasks: int, samples: int, rate: float) -> Results:
    return lambda g: g.binomial(1, rate, (tasks, samples)).astype(float)


def _unlike(tasks: int, samples: int, a: float, b: float) -> Results:
    return lambda g: (g.random((tasks, samples)) < g.beta(a, b, (tasks, 1))).astype(float)


def _halves(results: Results, samples: int) -> Results:
    """Return the means of the first and of the second half of each task's episodes."""
    return lambda g: results(g).reshape(-1, 2, samples).mean(2)


def _normal(tasks: int, samples: int) -> Results:
    """Return normal results; the tasks spread as much as the episodes of each."""
    if samples == 1:
        return lambda g: g.normal(0, 1, (tasks, 1))
    return lambda g: g.normal(0, 1, (tasks, 1)) + g.normal(0, 1, (tasks, samples))


def _exponential(tasks: int) -> Results:
    return lambda g: g.exponential(1, (tasks, 1))


_PARTIAL, _WEIGHTS = np.array([0.0, 0.25, 0.5, 1.0]), np.array([0.85, 0.08, 0.04, 0.03])


def _partial(tasks: int) -> Results:
    return lambda g: g.choice(_PARTIAL, p=_WEIGHTS, size=(tasks, 1))


def _means() -> Iterator[Case]:
    for tasks, rate_, limit in (
        (10, 0.5, FEW),
        (30, 0.9, FEW),
        (64, 0.05, ""),
        (200, 0.02, ""),
        (32, 0.02, FEW),
        (5, 0.1, FEW),
    ):
        yield _mean(f"{tasks} tasks, solved with {rate_}", rate_, _solved(tasks, 1, rate_), limit)
    for tasks, samples, rate_ in ((32, 4, 0.02), (32, 4, 0.05), (100, 2, 0.02)):
        what = f"{tasks} tasks x {samples} episodes, solved with {rate_}"
        yield _mean(what, rate_, _solved(tasks, samples, rate_))
    for tasks, samples, a, b in ((32, 4, 0.5, 1.0), (8, 8, 0.5, 1.0), (32, 4, 0.1, 2.0), (100, 2, 0.1, 1.0)):
        what = f"{tasks} tasks x {samples} episodes, tasks solved with Beta({a:g}, {b:g})"
        yield _mean(what, a / (a + b), _unlike(tasks, samples, a, b), SKEWED if b == 2.0 else "")
    for tasks in (32, 100):
        what = f"{tasks} tasks, partial scores, 85 % of them 0"
        yield _mean(what, float(_PARTIAL @ _WEIGHTS), _partial(tasks))
    for tasks in (2, 5, 10, 30, 200):
        yield _mean(f"{tasks} tasks, normal returns", 0.0, _normal(tasks, 1))
    for tasks, samples in ((4, 8), (8, 8), (32, 4)):
        yield _mean(f"{tasks} tasks x {samples} episodes, normal returns", 0.0, _normal(tasks, samples))
    for tasks in (10, 32, 100):
        limit = "" if tasks >= 100 else SKEWED
        yield _mean(f"{tasks} tasks, exponential returns", 1.0, _exponential(tasks), limit)


def _mean(what: str, truth: float, results: Results, limit: str = "") -> Case:
    def interval(g: np.random.Generator) -> Interval:
        return clustered_interval(results(g).tolist())

    return Case(of="means", what=what, truth=truth, draw=interval, limit=limit)


def _rates(tasks: int, rate: float | None, g: np.random.Generator) -> Array:
    """Return how often each task is solved: with this rate, or one drawn from Beta(0.5, 1)."""
    return np.full(tasks, rate) if rate is not None else g.beta(0.5, 1.0, tasks)


def _passes() -> Iterator[Case]:
    for samples, k, rate_, limit in ((8, 4, 0.02, FEW), (4, 2, 0.1, ""), (8, 4, 0.1, ""), (16, 4, 0.02, "")):
        what = f"pass@{k} of {samples}, 32 tasks, solved with {rate_}"
        estimates = [pass_at_k(samples, one, k) for one in range(samples + 1)]
        yield _pass(what, 1 - (1 - rate_) ** k, estimates, partial(_rates, 32, rate_), limit)
    for samples, k, tasks in ((4, 2, 32), (8, 4, 32), (8, 8, 32), (8, 4, 10)):
        # The rate of a task has the distribution Beta(0.5, 1), whose moments are products.
        all_pass = math.prod((0.5 + i) / (1.5 + i) for i in range(k))
        all_fail = math.prod((1.0 + i) / (1.5 + i) for i in range(k))
        for name, estimate, truth in (("@", pass_at_k, 1 - all_fail), ("^", pass_hat_k, all_pass)):
            what = f"pass{name}{k} of {samples}, {tasks} tasks, solved with Beta(0.5, 1)"
            estimates = [estimate(samples, one, k) for one in range(samples + 1)]
            rare = (name, k, samples, tasks) == ("^", 4, 8, 32)
            yield _pass(what, truth, estimates, partial(_rates, tasks, None), SKEWED if rare else "")


def _pass(what: str, truth: float, estimates: Sequence[float], rates: Results, limit: str) -> Case:
    """Return a case in which a task with c successes has the c-th of the estimates."""

    def interval(g: np.random.Generator) -> Interval:
        successes = g.binomial(len(estimates) - 1, rates(g)).tolist()
        return mean_interval([estimates[c] for c in successes], bounds=(0.0, 1.0))

    return Case(of="pass@k, pass^k", what=what, truth=truth, draw=interval, limit=limit)


def _comparisons() -> Iterator[Case]:
    for tasks in (5, 10, 32, 100):
        yield _compared(f"{tasks} tasks, normal, no difference", 0.0, [_normal(tasks, 1)])
    for tasks, p, q, limit in (
        (5, 0.5, 0.5, FEW),
        (10, 0.2, 0.6, ""),
        (32, 0.5, 0.5, ""),
        (32, 0.05, 0.2, ""),
        (100, 0.02, 0.1, ""),
        (200, 0.02, 0.02, ""),
        (32, 0.0, 0.1, ""),
    ):
        what = f"{tasks} tasks, solved with {p:g} and {q:g}"
        yield _compared(what, q - p, [_solved(tasks, 1, p), _solved(tasks, 1, q)], limit)
    for tasks, samples in ((10, 8), (32, 4), (100, 2)):
        what = f"{tasks} tasks x {samples} episodes, solved with Beta(0.5, 1), no difference"
        yield _compared(what, 0.0, [_halves(_unlike(tasks, 2 * samples, 0.5, 1.0), samples)])
    for tasks in (5, 10, 32):
        what = f"{tasks} tasks, both exponential, no difference"
        yield _compared(what, 0.0, [_exponential(tasks), _exponential(tasks)])
    for tasks in (5, 10, 32, 100):
        limit = "" if tasks >= 100 else SKEWED
        yield _compared(f"{tasks} tasks, exponential differences", 1.0, [_exponential(tasks)], limit)


def _compared(what: str, truth: float, results: Sequence[Results], limit: str = "") -> Case:
    """Return a case of two policies; of one result, the first policy always earns 0."""

    def interval(g: np.random.Generator) -> Interval:
        columns = np.concatenate([draw(g) for draw in results], axis=1)
        if columns.shape[1] == 1:
            columns = np.insert(columns, 0, 0.0, axis=1)
        found = paired_difference([(first, second) for first, second in columns.tolist()])
        return found.low, found.high

    return Case(of="compare", what=what, truth=truth, draw=interval, limit=limit)


def _ratings() -> Iterator[Case]:
    four, uneven = (0.0, 0.5, 1.0, -0.7), (0.0, 2.0, 3.0, 3.2)
    for strengths, draws, each in ((four, 0.3, 8), (four, 0.3, 40), (four, 0.3, 100), (uneven, 0.1, 20)):
        what = f"4 players, {each} pairs each, {draws:.0%} draws, strengths {strengths}"
        yield _rated(what, strengths, draws, each, FEW if each < 10 else "")
    for strength, each in ((2.0, 20), (3.0, 20)):
        yield _rated(f"2 players, {each} pairs, {strength:g} apart", (0.0, strength), 0.0, each, "")


def _rated(what: str, strengths: Sequence[float], draws: float, each: int, limit: str) -> Case:
    """Return the case of the second player's rating, with the first as the anchor."""
    names = [str(number) for number in range(len(strengths))]

    def interval(g: np.random.Generator) -> Interval:
        pairs = []
        for one, other in itertools.combinations(range(len(strengths)), 2):
            wins = 1 / (1 + math.exp(strengths[other] - strengths[one]))
            drawn = 2 * draws * min(wins, 1 - wins)
            odds = [1 - wins - drawn / 2, drawn, wins - drawn / 2]
            scores: list[float] = g.choice([0.0, 0.5, 1.0], p=odds, size=each).tolist()
            pairs += [PairScore(one=one, other=other, score=score) for score in scores]
        seed = int(g.integers(2**31))
        found = rate(names, pairs, anchor="0", seed=seed, bootstraps=_RESAMPLES)["1"]
        return found.low, found.high

    truth = ELO * (strengths[1] - strengths[0])
    return Case(of="ratings", what=what, truth=truth, draw=interval, limit=limit)
