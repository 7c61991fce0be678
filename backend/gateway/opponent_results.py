"""How a run's trained seats fared against each opponent over training, from the games that it stored."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from math import fsum

from backend.episodes.seat_players import Current, bind, class_of, label_of
from backend.gateway.episode_index import EpisodeRow
from backend.gateway.issued_requests import AnyVersion
from tinkergym.evaluation.statistics import clustered_interval, finite_ends
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.schema.summaries import OpponentResults, ResultsAgainst

_MOST_STEPS = 200
"""Of more, so many are read, spread over the run."""
_WINDOWS = 20

Returns = list[list[float]]
"""Of the trained seats, by group: its episodes share a seed, and so tell less than others."""


def opponent_results(
    spec: PlayedSpec,
    steps: Sequence[int],
    rows: Callable[[int], Iterable[EpisodeRow]],
    *,
    is_recorded: Callable[[int], bool],
    until: float,
    clock: Callable[[], float] = time.monotonic,
) -> OpponentResults:
    """Return the mean returns against each kind of opponent: in all, and in up to 20 windows of steps.

    Args:
        spec: The job's settings.
        steps: The steps with stored episodes, in order.
        rows: Returns those of a step, by index; recorded ones that were asked for lately take no time.
        is_recorded: Whether a step gets no more rows. The others come last: they take time in each call.
        until: When to stop, after one step at least.
        clock: Tells the time.
    """
    chosen = sorted(steps_in_order(steps), key=lambda step: not is_recorded(step))[:_MOST_STEPS]
    played: dict[int, list[tuple[str, list[float]]]] = {}
    for step in chosen:
        if played and clock() > until:
            break
        played[step] = list(_returns(spec, step, rows(step)))
    read = sorted(played)
    windows = {step: place * min(_WINDOWS, len(read)) // len(read) for place, step in enumerate(read)}
    ends = {window: step for step, window in windows.items()}
    found: dict[str, dict[int, Returns]] = defaultdict(lambda: defaultdict(list))
    for step in read:
        for name, returns in played[step]:
            found[name][windows[step]].append(returns)
    return OpponentResults(
        steps=len(steps),
        read=len(read),
        more=len(read) < len(chosen),
        opponents={
            name: [
                _results([one for groups in by_window.values() for one in groups], read[-1]),
                *(_results(by_window[window], ends[window]) for window in sorted(by_window)),
            ]
            for name, by_window in sorted(found.items())
        },
    )


def steps_in_order(steps: Sequence[int]) -> list[int]:
    """Order steps so that any number of the first ones is spread over all: halves, quarters, and so on.

    The order stays nearly the same when steps are added, so what was read before is of use.
    """
    return [steps[at] for at in sorted(range(len(steps)), key=lambda at: f"{at:b}"[::-1])]


def _returns(spec: PlayedSpec, step: int, rows: Iterable[EpisodeRow]) -> Iterator[tuple[str, list[float]]]:
    """Yield the opponent of each group of a step, and the returns of the trained seats."""
    for group, members in groupby(rows, key=lambda row: row.index // spec.groups.size):
        returns = [row.episode_return for row in members if row.trained and row.completed]
        if returns and (name := _opponent(spec, step, group)):
            yield name, returns


def _opponent(spec: PlayedSpec, step: int, group: int) -> str:
    """Return who played the seats that are not trained; empty if all are."""
    players = bind(spec, step, group, AnyVersion()).values()
    others = [one for one in players if not (isinstance(one, Current) and one.trained)]
    return " and ".join(dict.fromkeys(class_of(label_of(one)) for one in others))


def _results(groups: Returns, step: int) -> ResultsAgainst:
    values = [value for group in groups for value in group]
    low, high = finite_ends(*clustered_interval(groups))
    return ResultsAgainst(
        step=step, episodes=len(values), mean=fsum(values) / len(values), low=low, high=high
    )
