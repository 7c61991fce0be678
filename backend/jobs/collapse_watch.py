"""The collapse guard: three signs that the play of a game's policies degenerates, each a warning.

Plain numbers per step, kept for a window of steps and saved with the checkpoints, so a resumed job sees the
same as an undisturbed one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backend.episodes.played import Played, PlayedSeat, is_lost, trained_seats
from backend.episodes.seat_players import class_of
from tinkergym.schema.events import WarningEvent
from tinkergym.schema.ids import policy_of
from tinkergym.schema.jobs.parts import CollapseGuard
from tinkergym.schema.jobs.played_spec import PlayedSpec

_OWN = frozenset({"trained", "current", "past"})
"""Kinds of opponents that change with training; all others are anchors."""

Figures = dict[str, float]
"""Figures of one step: `anchor`, `own` and `entropy`, and for all games `drawn` and `long`. If a job trains
several policies, the first three exist per policy: `anchor/black`. Unavailable figures are missing."""


@dataclass(slots=True)
class CollapseWatch:
    """The state of one job's guard."""

    spec: PlayedSpec
    guard: CollapseGuard
    _seen: list[Figures] = field(default_factory=list)
    _best: dict[str, tuple[float, float, int]] = field(default_factory=dict)
    """By policy, the best mean against anchors, the mean of the other games at that time, and the step."""
    _good_step: int = 0
    """The last step with a checkpoint and without an alarm."""
    _given: set[str] = field(default_factory=set)
    """Active alarms, by policy: their figure has not recovered since."""

    @property
    def good_step(self) -> int:
        """The step of the last good version, whose checkpoint is to be kept."""
        return self._good_step

    def record_step(
        self, step: int, played: Played, *, is_saved: bool, come_back: Callable[[int], str]
    ) -> list[WarningEvent]:
        """Record a step's games, and return new alarms.

        Args:
            step: The finished step.
            played: Its episodes.
            is_saved: Whether its version gets a checkpoint.
            come_back: Returns the command that continues from a version.
        """
        self._seen = [*self._seen[-(self.guard.window - 1) :], figures_of(self.spec, played)]
        # With a window of 1 the slice above is `[-0:]`, which keeps everything.
        if self.guard.window == 1:
            self._seen = self._seen[-1:]
        wrong = self._wrong(step) if len(self._seen) >= self.guard.window else {}
        new = {key: text for key, text in wrong.items() if "".join(key) not in self._given}
        self._given = {"".join(key) for key in wrong}
        warnings = [
            WarningEvent(
                name=name,
                message=f"{text}, at step {step}. The last good version is {self._good_step}; continue "
                f"from it with: {come_back(self._good_step)}",
                step=step,
            )
            for (name, _), text in new.items()
        ]
        if is_saved and not wrong and self._is_near_best():
            self._good_step = step
        return warnings

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "seen": [dict(one) for one in self._seen],
            "best": {of: list(best) for of, best in self._best.items()},
            "good_step": self._good_step,
            "given": sorted(self._given),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self._seen = [dict(one) for one in state["seen"]]
        self._best = {
            of: (float(anchor), float(own), int(step)) for of, (anchor, own, step) in state["best"].items()
        }
        self._good_step, self._given = int(state["good_step"]), set(state["given"])

    def _wrong(self, step: int) -> dict[tuple[str, str], str]:
        """Return what each alarm says, by its name and the policy."""
        guard, wrong = self.guard, dict[tuple[str, str], str]()
        for of in _policies(self.spec):
            wrong |= self._wrong_of(of, step)
        drawn, long = self._mean("drawn"), self._mean("long")
        if drawn is not None and drawn > guard.most_alike:
            wrong["collapse_draws", ""] = f"{drawn:.0%} of the games are drawn"
        if long is not None and long > guard.most_alike:
            wrong["collapse_length", ""] = f"{long:.0%} of the games are as long as a limit allows"
        return wrong

    def _wrong_of(self, of: str, step: int) -> dict[tuple[str, str], str]:
        """Check one policy; another one that does well does not hide it."""
        guard, wrong, whose = self.guard, dict[tuple[str, str], str](), f" of {of[1:]}" if of else ""
        anchor, own = self._mean(f"anchor{of}"), self._mean(f"own{of}") or 0.0
        if anchor is not None:
            if of not in self._best or anchor >= self._best[of][0]:
                self._best[of] = anchor, own, step
            best, own_then, at = self._best[of]
            if anchor < best - guard.anchor_drop and own >= own_then - guard.anchor_drop:
                others = f", while that of all other games went from {own_then:.3g} to {own:.3g}"
                wrong["collapse_anchor_reward", of] = (
                    f"the return{whose} against anchors fell from {best:.3g} at step {at} to {anchor:.3g}"
                    # Every opponent of the policy may be fixed.
                    + (others if self._mean(f"own{of}") is not None else "")
                )
        entropy = self._mean(f"entropy{of}")
        if entropy is not None and entropy < guard.least_entropy:
            wrong["collapse_entropy", of] = (
                f"actions{whose} have an entropy of {entropy:.3g} nats per token, below "
                f"{guard.least_entropy:g}"
            )
        return wrong

    def _is_near_best(self) -> bool:
        means = {of: self._mean(f"anchor{of}") for of in self._best}
        least = self.guard.anchor_drop / 2
        return all(mean is None or mean >= self._best[of][0] - least for of, mean in means.items())

    def _mean(self, name: str) -> float | None:
        known = [one[name] for one in self._seen if name in one]
        return math.fsum(known) / len(known) if known else None


def command_from(spec: PlayedSpec, job_id: str, version: int) -> str:
    """Return the command that starts a job from a version; `...` is for the job's other settings."""
    command, agents = f"tinkergym train {spec.environment.id} ...", spec.trained_agents
    whose = {agent: policy_of(job_id, agent, version=version) for agent in agents}
    if not version:
        return command
    if len(agents) == 1:
        return f"{command} --from {whose[agents[0]]}"
    # With --from, all of them would start from the same policy.
    return command + "".join(f" --set agents.{name}.initial_policy={ref}" for name, ref in whose.items())


def guard_metrics(spec: PlayedSpec, played: Played) -> dict[str, float]:
    """Return a step's figures as metrics."""
    return {f"guard/{name}": value for name, value in figures_of(spec, played).items()}


def figures_of(spec: PlayedSpec, played: Played) -> Figures:
    """Return the guard's figures for a step's finished games."""
    good = [pair for pair in played if not is_lost(pair[1])]
    seats = [seat for seat in trained_seats(good) if seat.trajectory.completed]
    found = {
        "drawn": _mean([_is_drawn(seat) for seat in seats]),
        "long": _mean([float(_is_long(spec, seat)) for seat in seats]),
    }
    for of in _policies(spec):
        its = [seat for seat in seats if of in ("", f"/{spec.policy_at(seat.trajectory.agent)}")]
        found[f"anchor{of}"] = _return([seat for seat in its if not _kinds(seat) <= _OWN])
        found[f"own{of}"] = _return([seat for seat in its if _kinds(seat) <= _OWN])
        found[f"entropy{of}"] = entropy_of(its)
    return {name: value for name, value in found.items() if value is not None}


def _policies(spec: PlayedSpec) -> list[str]:
    """Return the suffix of a figure's name for each policy; empty if there is only one."""
    agents = spec.trained_agents
    return [f"/{agent}" for agent in agents] if len(agents) > 1 else [""]


def _return(seats: Sequence[PlayedSeat]) -> float | None:
    """Return the mean of the seats' mean returns, so that a frequently drawn seat does not weigh more."""
    by_seat: dict[str, list[float]] = {}
    for seat in seats:
        by_seat.setdefault(seat.trajectory.agent, []).append(seat.trajectory.episode_return)
    return _mean([math.fsum(own) / len(own) for own in by_seat.values()])


def _kinds(seat: PlayedSeat) -> set[str]:
    return {
        class_of(one.player) for agent, one in seat.request.seats.items() if agent != seat.trajectory.agent
    }


def _is_long(spec: PlayedSpec, seat: PlayedSeat) -> bool:
    """Whether a limit ended the game, the job's or the game's own."""
    return len(seat.trajectory.turns) >= spec.limits.max_turns or seat.trajectory.truncated


def _is_drawn(seat: PlayedSeat) -> float:
    # The game reports it: if all players get the same reward, a return of 0 is not a draw.
    return max((turn.metrics.get("drawn", 0.0) for turn in seat.trajectory.turns), default=0.0)


def entropy_of(seats: Sequence[PlayedSeat]) -> float | None:
    """Return the mean negative logprob of the sampled tokens, which is the entropy on average."""
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
