"""What the algorithms share that compare the episodes of a step with one another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from tinkergym.advantages import Baseline, Normalize, group_advantages, returns_to_go, turn_advantages
from tinkergym.schema.policy_gradient import PolicyGradient
from tinkergym.schema.refusals import Refusal
from tinkergym.trajectory.outcomes import Credit, Credits, Outcome, StepOutcomes


class Comparing(PolicyGradient):
    """Compares the returns of whole episodes, or from each turn on."""

    credit: Literal["episode", "turn"] = "episode"
    """Credit every completion of an episode with the whole return, or with the return from its turn on,
    compared with the same turn of the other episodes."""
    discount: float = Field(1.0, gt=0, le=1)
    """Discount per turn, with `credit="turn"`."""
    dynamic_sampling_rounds: int = Field(0, ge=0, le=32)
    """How often per step zero-variance groups are replaced with new ones (DAPO, arXiv:2503.14476)."""

    permutes_returns: ClassVar[bool] = True

    @property
    def comparison(self) -> tuple[Baseline, Normalize]:
        """What an episode's return is compared with, and what the difference is divided by."""
        raise NotImplementedError

    @property
    def needs_beyond_returns(self) -> str:
        """The returns of replaced groups, if the scale is that of the step."""
        if self.dynamic_sampling_rounds and self.comparison[1] == "batch_std":
            return "dynamic_sampling_rounds replaced groups, which are not part of the step's deviation"
        return ""

    @property
    def compares_siblings(self) -> bool:
        """True, unless the baseline is the mean of the step."""
        return self.comparison[0] != "batch"

    @property
    def credited(self) -> Literal["episode", "turn"]:
        """As set by `credit`."""
        return self.credit

    @property
    def replacement_rounds(self) -> int:
        """As set by `dynamic_sampling_rounds`."""
        return self.dynamic_sampling_rounds

    @model_validator(mode="after")
    def _there_is_something_to_compare(self) -> Self:
        if self.compares_siblings and self.group_size < 2:
            also = " or choose baseline='batch'" if "baseline" in type(self).model_fields else ""
            reason = (
                "must be at least 2 if episodes are compared with their group: a single episode has "
                "advantage 0, so nothing would be learned"
            )
            raise Refusal("group_size", reason, f"raise group_size{also}", "no_siblings").in_validator()
        if self.group_size * self.groups_per_step < 2:
            reason = "* groups_per_step must be at least 2: a single episode has no baseline"
            raise Refusal("group_size", reason, "raise one of them", "no_baseline").in_validator()
        return self

    @model_validator(mode="after")
    def _turns_and_rounds_take_effect(self) -> Self:
        self._refuse_idle("discount", self.credit == "episode", "credit='turn'")
        self._refuse_idle(
            "dynamic_sampling_rounds",
            not self.compares_siblings,
            "an algorithm that compares episodes with their group",
        )
        return self

    def credits(self, step: StepOutcomes) -> Credits:
        """Compare each episode, or each turn, within its group or the step."""
        seats, (baseline, normalize) = step.seats, self.comparison
        groups, counted = [seat.group for seat in seats], [seat.counts for seat in seats]
        kinds = [seat.kind for seat in seats]
        found: Sequence[Credit]
        if self.credit == "turn":
            found, advantages = turn_advantages(
                self._returns_from_turns(seats),
                groups,
                counted,
                baseline=baseline,
                normalize=normalize,
                shuffle=step.shuffle,
                strata=kinds,
            )
        else:
            advantages = group_advantages(
                [seat.earned for seat in seats],
                groups,
                counted,
                baseline=baseline,
                normalize=normalize,
                shuffle=step.shuffle,
                strata=kinds,
            )
            found = advantages.values.tolist()
        metrics = {
            "zero_variance_groups": float(advantages.zero_variance_groups),
            "broken_groups": float(advantages.broken_groups),
            "compared_groups": float(len(set(compress(groups, advantages.included)))),
        }
        if self.credit == "turn":
            metrics["lone_turns"] = float(advantages.lone_turns)
        pairs = zip(found, advantages.included, strict=True)
        return Credits([credit if included else None for credit, included in pairs], metrics)

    def has_zero_variance(self, group: Sequence[Outcome]) -> bool:
        """Whether all returns of a group, or from each turn on, are equal; or there are fewer than two."""
        if len(group) < 2:
            return True
        one, every = [0] * len(group), [True] * len(group)
        if self.credit != "turn":
            return not group_advantages([seat.earned for seat in group], one, every).values.any()
        # Not the rewards themselves: episodes of different length can also have equal advantages.
        turns, _ = turn_advantages(self._returns_from_turns(group), one, every)
        return not any(own.any() for own in turns)

    def _returns_from_turns(self, seats: Sequence[Outcome]) -> list[list[float]]:
        return [returns_to_go(seat.rewards, discount=self.discount) for seat in seats]
