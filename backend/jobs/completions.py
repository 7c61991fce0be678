"""Statistics of a step's completions: their lengths, how many a limit cut, and which taught little. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from backend.episodes.played import Played, PlayedSeat, first_episodes, trained_seats
from backend.jobs.degenerate_completions import degenerate_warnings
from tinkergym.schema.events import StepEvent, WarningEvent
from tinkergym.schema.ids import AgentMetric
from tinkergym.trajectory.trajectory import Turn

_MANY_CUT = 0.25
_MANY_EMPTY = 0.1
_FEW = 4
"""Fewer completions are not enough to warn."""
_ENOUGH = 0.01
"""The fraction of completions that a sufficient limit may still cut."""

WHAT_EQUAL_REWARDS_MEAN = (
    "If they earned all there is to earn, the task is learned: end the job (`EvaluateEvery(target=...)` ends "
    "it by itself) or make the task harder. If not, and this continues, make the task easier or its reward "
    "finer"
)
"""The service does not know the largest reward, so the hint is for either case."""


def completion_metrics(played: Played) -> dict[str, float]:
    """Return lengths and fractions over the trained completions and episodes.

    If several seats are trained, also those of each: `seat/<agent>/completions/mean_length`. Metrics with the
    same meaning as in TRL's trainers have TRL's names.
    """
    seats = trained_seats(played)
    by_agent: dict[str, list[PlayedSeat]] = defaultdict(list)
    for seat in seats:
        by_agent[seat.trajectory.agent].append(seat)
    if len(by_agent) < 2:
        return _completions_of(seats)
    return _completions_of(seats) | {
        str(AgentMetric("seat", agent, name)): value
        for agent, own in by_agent.items()
        for name, value in _completions_of(own).items()
    }


def _completions_of(seats: Sequence[PlayedSeat]) -> dict[str, float]:
    turns = [turn for seat in seats for turn in seat.trajectory.turns]
    if not turns:
        return {}
    lengths = [turn.end - turn.start for turn in turns]
    ended = [turn.end - turn.start for turn in turns if turn.finish_reason != "length"]
    metrics = {
        "completions/mean_length": sum(lengths) / len(turns),
        "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
        "completions/clipped_ratio": 1 - len(ended) / len(turns),
        "completions/empty_ratio": sum(map(_is_empty, turns)) / len(turns),
        "episodes/turns_mean": len(turns) / len(seats),
        "episodes/cut_ratio": sum(_is_cut(seat) for seat in seats) / len(seats),
    }
    if ended:
        metrics["completions/mean_terminated_length"] = sum(ended) / len(ended)
    return {name: float(value) for name, value in metrics.items()}


def speed_metrics(event: StepEvent) -> dict[str, float]:
    """Return the parts of a step's tokens per second: sampled while the engine worked, trained likewise."""
    parts = {
        "sampling": (event.sampled_tokens, event.sampling_seconds),
        "learning": (event.trained_tokens, event.learning_seconds),
    }
    return {
        f"tokens_per_second/{name}": tokens / seconds
        for name, (tokens, seconds) in parts.items()
        if tokens and seconds > 0
    }


def waste_warnings(
    step: int, played: Played, *, rewards_count: bool, compares_siblings: bool = False
) -> list[WarningEvent]:
    """Return a warning for each reason why the step's play was wasted.

    Args:
        step: The step.
        played: Its episodes.
        rewards_count: Whether rewards are trained on; a teacher may score instead.
        compares_siblings: Whether the episodes of a group must start equal.
    """
    seats = trained_seats(played)
    found = [_cut(step, seats), _empty(step, seats), *degenerate_warnings(step, seats)]
    if rewards_count:
        found.append(_equal_rewards(step, seats))
    if compares_siblings:
        found.append(_unequal_starts(step, seats))
    return [warning for warning in found if warning is not None]


def _cut(step: int, seats: Sequence[PlayedSeat]) -> WarningEvent | None:
    """Warn of the limit that cuts the most completions. Seats may have limits of their own."""
    seats_at: dict[int, list[PlayedSeat]] = defaultdict(list)
    for seat in seats:
        seats_at[seat.request.seats[seat.trajectory.agent].sampling.max_turn_tokens].append(seat)
    worst: tuple[float, int, int] | None = None
    for limit, some in seats_at.items():
        cut, count = len(_cut_at(limit, some)), sum(len(seat.trajectory.turns) for seat in some)
        if cut >= max(_FEW, _MANY_CUT * count):
            worst = max(worst or (0.0, 0, 0), (cut / count, count, limit))
    if worst is None:
        return None
    share, count, limit = worst
    found = _cut_at(limit, seats_at[limit])
    return WarningEvent(
        name="completions_cut",
        message=f"{len(found)} of the {count} completions of step {step} were cut at "
        f"sampling.max_turn_tokens={limit}; {_what_is_enough(limit, share)}",
        step=step,
        count=len(found),
        episodes=first_episodes(found),
    )


def _cut_at(limit: int, seats: Sequence[PlayedSeat]) -> list[PlayedSeat]:
    """Return the seat of each completion that a limit cut."""
    return [
        seat
        for seat in seats
        for turn in seat.trajectory.turns
        if turn.finish_reason == "length" and turn.end - turn.start >= limit
    ]


def _what_is_enough(limit: int, share: float) -> str:
    if share == 1:
        return f"none ended by itself, so a sufficient limit is unknown: try {4 * limit}"
    # Assuming the same rate of endings per token beyond the limit.
    enough = math.ceil(limit * math.log(_ENOUGH) / math.log(share))
    return (
        f"about {enough} would be enough for all but {_ENOUGH:.0%} if completions continue to end at "
        f"this rate: raise it"
    )


def _empty(step: int, seats: Sequence[PlayedSeat]) -> WarningEvent | None:
    empty = [seat for seat in seats for turn in seat.trajectory.turns if _is_empty(turn)]
    count = sum(len(seat.trajectory.turns) for seat in seats)
    if len(empty) < max(_FEW, _MANY_EMPTY * count):
        return None
    return WarningEvent(
        name="empty_completions",
        message=f"{len(empty)} of the {count} completions of step {step} have no text: the model ends its "
        "turn at once, as models do with prompts that they do not understand (`nano` knows only those of the "
        "included packs). Choose another model, or say in a system_prompt what to answer; `tinkergym tokens "
        "MODEL` shows the chat template",
        step=step,
        count=len(empty),
        episodes=first_episodes(empty),
    )


def _equal_rewards(step: int, seats: Sequence[PlayedSeat]) -> WarningEvent | None:
    returns = {seat.trajectory.episode_return for seat in seats if seat.trajectory.completed}
    completed = sum(seat.trajectory.completed for seat in seats)
    if completed < _FEW or len(returns) != 1:
        return None
    return WarningEvent(
        name="equal_rewards",
        message=f"all {completed} completed episodes of step {step} earned {returns.pop():g}: the rewards "
        f"taught nothing. {WHAT_EQUAL_REWARDS_MEAN}, or check whether the scoring works "
        "(`tinkergym check ENV`)",
        step=step,
        count=completed,
    )


def _unequal_starts(step: int, seats: Sequence[PlayedSeat]) -> WarningEvent | None:
    first: dict[int, set[str]] = defaultdict(set)
    for seat in seats:
        # In a game, a seat's first observation may depend on the other players.
        if len(seat.request.seats) == 1 and seat.trajectory.turns:
            first[seat.group].add(repr(seat.trajectory.turns[0].observation))
    unequal = sum(len(seen) > 1 for seen in first.values())
    if not unequal:
        return None
    return WarningEvent(
        name="unequal_starts",
        message=f"in {unequal} of the {len(first)} groups of step {step} the episodes did not start equal, "
        f"although they have the same seed, so different tasks are compared. Draw everything from "
        "self.np_random after super().reset(seed=seed); `tinkergym check ENV` finds the place",
        step=step,
        count=unequal,
    )


def _is_empty(turn: Turn) -> bool:
    return isinstance(turn.action, str) and not turn.action.strip()


def _is_cut(seat: PlayedSeat) -> bool:
    """Whether a limit ended the episode, the job's or the environment's own."""
    return seat.trajectory.completed and not seat.trajectory.terminated
