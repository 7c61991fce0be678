"""The outcomes of a step's episodes, and the credit of their tokens: what a credit rule gets and returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tinkergym.trajectory.trajectory import Trajectory

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

Memory = dict[str, Any]
"""What an algorithm keeps from step to step: JSON values by name. It is part of each checkpoint. The policies
of a job share it; `Outcome.key` makes names that belong to one seat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One seat of an episode: what it did, and what it earned."""

    trajectory: Trajectory
    rewards: list[float]
    """The reward of each turn, minus the job's penalties; except the KL penalty if tokens are credited, see
    `token_costs`."""
    earned: float
    """The return by which the episode is compared: their sum. An agent that never acted has no turns, but its
    game was won or lost."""
    counts: bool = True
    """Whether the episode enters baselines and may be trained on; False if it failed."""
    group: int = 0
    """Equal for the same seat in the episodes of one group."""
    kind: int = 0
    """Equal for comparable returns: the same environment and agent. Never average over several."""
    key: str = ""
    """The environment, the agent and the kinds of its opponents; stays the same from step to step."""
    trained: Sequence[BoolArray] = ()
    """By segment, which of its tokens enter the loss, [tokens]."""
    token_costs: Mapping[int, FloatArray] = field(default_factory=dict)
    """By segment, the KL penalty of each sampled token in units of reward; empty without one."""


@dataclass(frozen=True, slots=True)
class StepOutcomes:
    """The outcomes of a step's episodes at the seats of one policy; those of a group are adjacent."""

    seats: Sequence[Outcome]
    values: Callable[[], Sequence[Mapping[int, npt.NDArray[np.float32]]]] = list
    """Asks the value head, if there is one: for each seat by segment, the estimated return before each
    sampled token. Empty for seats that do not count."""
    shuffle: np.random.Generator | None = None
    """For an algorithm with `permutes_returns`: permute returns with it, in the control experiment."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """See `Memory`, as it was before this step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCredit:
    """One entry per sampled token of a segment."""

    advantages: FloatArray
    value_targets: FloatArray
    """The target of the value head before the token, in units of return."""
    old_values: FloatArray
    """The value head's estimate."""


Credit = float | FloatArray | Mapping[int, TokenCredit]
"""An advantage for a whole episode, one for each of its turns, or by segment those of the sampled tokens."""


@dataclass(frozen=True, slots=True)
class Credits:
    """The credit of each seat, in the order of the outcomes."""

    of: Sequence[Credit | None]
    """None: the seat's episode is not trained on."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Added to the step's metrics."""
