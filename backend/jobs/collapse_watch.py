"""The collapse guard: three signs that the play of a game's policies degenerates, each a warning.

Plain numbers per step, kept for a window of steps and saved with the checkpoints, so a resumed job sees
what an undisturbed one would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backend.episodes.binding import class_of
from backend.episodes.played import Played, PlayedSeat, is_lost, trained_seats
from tinkergym.schema.collapse_guard import CollapseGuard
from tinkergym.schema.events import WarningEvent
from tinkergym.schema.job_spec import JobSpec

_OWN = frozenset({"trained", "current", "past"})
"""Opponents that training moves; all others are anchors."""

Figures = dict[str, float]
"""Of one step: `anchor`, `own`, `entropy`, `drawn`, `long`; what the step had nothing for is missing."""


@dataclass(slots=True)
class CollapseWatch:
    """What the guard of one job has seen."""

    spec: JobSpec
    guard: CollapseGuard
    _seen: list[Figures] = field(default_factory=list)
    _best: tuple[float, float, int] | None = None
    """The best mean against anchors, the mean of the other games then, and the step."""
    _good_step: int = 0
    """The last step with a checkpoint at which nothing was wrong."""
    _given: set[str] = field(default_factory=set)
    """Alarms whose figure has not been good since."""

    @property
    def good_step(self) -> int:
        """The step whose version is the last good one; its checkpoint is to be kept."""
        return self._good_step

    def look(
        self, step: int, played: Played, *, is_saved: bool, come_back: Callable[[int], str]
    ) -> list[WarningEvent]:
        """Take a step's games, and return the alarms that they give.

        Args:
            step: That is done.
            played: Its episodes.
            is_saved: Whether its version gets a checkpoint.
            come_back: Returns the command that goes on from a version.
        """
        self._seen = [*self._seen[-(self.guard.window - 1) :], figures_of(self.spec, played)]
        if self.guard.window == 1:
            self._seen = self._seen[-1:]
        wrong = self._wrong(step) if len(self._seen) >= self.guard.window else {}
        new = {name: text for name, text in wrong.items() if name not in self._given}
        self._given = set(wrong)
        warnings = [
            WarningEvent(
                name=name,
                message=f"{text}, at step {step}. The last good version is {self._good_step}; go back to it "
                f"with: {come_back(self._good_step)}",
                step=step,
            )
            for name, text in new.items()
        ]
        if is_saved and not wrong and self._is_near_best():
            self._good_step = step
        return warnings

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds of it."""
        return {
            "seen": [dict(one) for one in self._seen],
            "best": None if self._best is None else list(self._best),
            "good_step": self._good_step,
            "given": sorted(self._given),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what a checkpoint holds."""
        self._seen = [dict(one) for one in state["seen"]]
        best = state["best"]
        self._best = None if best is None else (float(best[0]), float(best[1]), int(best[2]))
        self._good_step, self._given = int(state["good_step"]), set(state["given"])

    def _wrong(self, step: int) -> dict[str, str]:
        guard, wrong = self.guard, dict[str, str]()
        anchor, own = self._mean("anchor"), self._mean("own") or 0.0
        if anchor is not None:
            if self._best is None or anchor >= self._best[0]:
                self._best = (anchor, own, step)
            best, own_then, at = self._best
            if anchor < best - guard.anchor_drop and own >= own_then - guard.anchor_drop:
                wrong["collapse_anchor_reward"] = (
                    f"the return against anchors fell from {best:.3g} at step {at} to {anchor:.3g}, while "
                    f"that of all other games went from {own_then:.3g} to {own:.3g}"
                )
        entropy, drawn, long = self._mean("entropy"), self._mean("drawn"), self._mean("long")
        if entropy is not None and entropy < guard.least_entropy:
            wrong["collapse_entropy"] = (
                f"actions have an entropy of {entropy:.3g} nats per token, below {guard.least_entropy:g}"
            )
        if drawn is not None and drawn > guard.most_alike:
            wrong["collapse_draws"] = f"{drawn:.0%} of the games are drawn"
        if long is not None and long > guard.most_alike:
            wrong["collapse_length"] = f"{long:.0%} of the games are as long as limits.max_turns allows"
        return wrong

    def _is_near_best(self) -> bool:
        anchor = self._mean("anchor")
        return self._best is None or anchor is None or anchor >= self._best[0] - self.guard.anchor_drop / 2

    def _mean(self, name: str) -> float | None:
        known = [one[name] for one in self._seen if name in one]
        return math.fsum(known) / len(known) if known else None


def guard_metrics(spec: JobSpec, played: Played) -> dict[str, float]:
    """Return a step's figures as its metrics."""
    return {f"guard/{name}": value for name, value in figures_of(spec, played).items()}


def figures_of(spec: JobSpec, played: Played) -> Figures:
    """Return what the guard looks at in a step's games that were played to an end."""
    good = [pair for pair in played if not is_lost(pair[1])]
    seats = [seat for seat in trained_seats(good) if seat.trajectory.completed]
    anchors = [seat for seat in seats if not _kinds(seat) <= _OWN]
    own = [seat for seat in seats if _kinds(seat) <= _OWN]
    found = {
        "anchor": _mean([seat.trajectory.episode_return for seat in anchors]),
        "own": _mean([seat.trajectory.episode_return for seat in own]),
        "entropy": _entropy(seats),
        "drawn": _mean([_is_drawn(seat) for seat in seats]),
        "long": _mean([float(len(seat.trajectory.turns) >= spec.limits.max_turns) for seat in seats]),
    }
    return {name: value for name, value in found.items() if value is not None}


def _kinds(seat: PlayedSeat) -> set[str]:
    return {
        class_of(one.player) for agent, one in seat.request.seats.items() if agent != seat.trajectory.agent
    }


def _is_drawn(seat: PlayedSeat) -> float:
    # A game says so itself: where all are paid alike, a return of 0 is not a draw.
    return max((turn.metrics.get("drawn", 0.0) for turn in seat.trajectory.turns), default=0.0)


def _entropy(seats: Sequence[PlayedSeat]) -> float | None:
    """Return the mean surprise of the sampled tokens, which is the entropy on average."""
    return _mean(
        [
            -logprob
            for seat in seats
            for segment in seat.trajectory.segments
            for logprob in segment.sampling_logprobs
            if logprob is not None
        ]
    )


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
