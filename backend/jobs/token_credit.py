"""The advantage of each sampled token when there is a value head. Pure.

The time steps of an episode are its sampled tokens, over all turns and segments; a turn's reward is paid at
its last token. Observations take no time steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from backend.learner.gae import explained_variance, generalised_advantages, whitened
from backend.learner.sequences import FloatArray
from tinkergym.schema.algorithms import PPO
from tinkergym.trajectory.trajectory import Trajectory

Place = tuple[int, int]
"""Key of a segment: number of the episode, number of the segment in it."""
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCredit:
    """One entry per sampled token of a segment."""

    advantages: Numbers
    value_targets: Numbers
    """The target of the value head before the token, in units of return."""
    old_values: Numbers
    """The value head's estimate."""


def token_credits(
    algorithm: PPO,
    trajectories: Sequence[Trajectory],
    rewards: Sequence[Sequence[float]],
    values: Mapping[Place, FloatArray],
    penalties: Mapping[Place, Numbers],
) -> dict[Place, TokenCredit]:
    """Estimate the advantages of the tokens of every episode that has values.

    Args:
        algorithm: The job's algorithm.
        trajectories: The episodes of the step.
        rewards: The rewards of each one's turns.
        values: By segment, the value head's estimate before each sampled token. For an episode, every segment
            with a sampled token, or none.
        penalties: In the same form, subtracted from each token's reward; may be empty.
    """
    places_of: dict[int, list[Place]] = defaultdict(list)
    for place in values:
        places_of[place[0]].append(place)
    found: dict[Place, TokenCredit] = {}
    for episode, places in places_of.items():
        paid = turn_payments(trajectories[episode], rewards[episode])
        paid -= np.concatenate([penalties.get(place, np.zeros(len(values[place]))) for place in places])
        expected = np.concatenate([values[place] for place in places]).astype(np.float64)
        advantages = generalised_advantages(
            paid, expected, gamma=algorithm.gamma, gae_lambda=algorithm.gae_lambda
        )
        ends = np.cumsum([len(values[place]) for place in places])[:-1]
        parts = [np.split(numbers, ends) for numbers in (advantages, advantages + expected, expected)]
        for place, own, target, old in zip(places, *parts, strict=True):
            found[place] = TokenCredit(advantages=own, value_targets=target, old_values=old)
    return found


def turn_payments(trajectory: Trajectory, rewards: Sequence[float]) -> Numbers:
    """Return the reward at each sampled token of an episode: a turn's reward at its last token, else 0.

    A turn without a sampled token has its reward paid at the one before it, or the very first.

    Args:
        trajectory: With at least one sampled token.
        rewards: The rewards of its turns.

    Returns:
        [sampled tokens], over all segments, in the order in which they were sampled.
    """
    counts = [np.cumsum(segment.loss_mask, dtype=np.int64) for segment in trajectory.segments]
    before = np.cumsum([0, *(int(count[-1]) if len(count) else 0 for count in counts)])
    paid = np.zeros(int(before[-1]))
    for turn, reward in zip(trajectory.turns, rewards, strict=True):
        sampled = int(counts[turn.segment][turn.end - 1]) if turn.end else 0
        paid[max(int(before[turn.segment]) + sampled - 1, 0)] += reward
    return paid


def whitened_credits(
    credited: Mapping[Place, TokenCredit], learned: Mapping[Place, npt.NDArray[np.bool_]]
) -> dict[Place, TokenCredit]:
    """Normalize the advantages to mean 0 and standard deviation 1 over the trained tokens.

    Args:
        credited: The step's credits.
        learned: By segment, [sampled tokens], whether it is trained; other advantages become 0.
    """
    places = list(credited)
    chosen = [credited[place].advantages[learned[place]] for place in places]
    flat = whitened(np.concatenate([np.zeros(0), *chosen]))
    parts = np.split(flat, np.cumsum([len(part) for part in chosen])[:-1]) if places else []
    found: dict[Place, TokenCredit] = {}
    for place, part in zip(places, parts, strict=True):
        advantages = np.zeros(len(credited[place].advantages))
        advantages[learned[place]] = part
        found[place] = replace(credited[place], advantages=advantages)
    return found


def value_metrics(credited: Mapping[Place, TokenCredit]) -> dict[str, float]:
    """Return how good the values were before the update: value_mean, explained_variance.

    The latter is missing if all targets are equal.
    """
    if not credited:
        return {}
    old = np.concatenate([credit.old_values for credit in credited.values()])
    targets = np.concatenate([credit.value_targets for credit in credited.values()])
    metrics = {"value_mean": float(old.mean())}
    explained = explained_variance(old, targets)
    return metrics if explained is None else {**metrics, "explained_variance": explained}
