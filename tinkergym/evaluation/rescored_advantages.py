"""Advantages of stored episodes under another reward, as the job's algorithm computes them.

Where an algorithm needs more than one reward per episode, `what_is_missing` says so, and there are none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tinkergym.datasets.stored_episodes import StoredEpisode, StoredEpisodes
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.policy_gradient import PolicyGradient
from tinkergym.trajectory.outcomes import FloatArray, Outcome, StepOutcomes


def what_is_missing(spec: PlayedSpec, episodes: StoredEpisodes) -> str:
    """Return why the advantages of a job's episodes cannot be computed from rewards; empty if they can.

    Args:
        spec: The job.
        episodes: All of its episodes that are rescored, including failed ones.
    """
    if not isinstance(spec, RLSpec):
        return "the advantages of a distillation job come from its teacher, not from rewards"
    found = (_needed(spec, agent, episodes) for agent in sorted({one.agent for one in episodes}))
    return next((reason for reason in found if reason), "")


def _needed(spec: RLSpec, agent: str, episodes: StoredEpisodes) -> str:
    algorithm = spec.for_agent(_policy_at(spec, agent)).algorithm
    own = [one for one in episodes if one.agent == agent]
    several_turns = any(len(one.trajectory.turns) > 1 for one in own if one.completed)
    if algorithm.needs_beyond_returns:
        return algorithm.needs_beyond_returns
    reasons = {
        "credit='turn' needs a reward for each turn, and the new reward is for the whole episode": (
            algorithm.credited == "turn" and several_turns
        ),
        "the job's penalties (overlong_tokens, kl_in='reward') are not part of the stored rewards": (
            algorithm.overlong_tokens or (algorithm.kl_coefficient and algorithm.kl_in == "reward")
        ),
        "on_failure='keep' compared episodes that failed, and these have no new reward": (
            spec.on_failure == "keep" and _compared_failures(own, algorithm.group_size)
        ),
        "shuffle_rewards trains on permuted rewards": spec.shuffle_rewards,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _compared_failures(episodes: Sequence[StoredEpisode], group_size: int) -> bool:
    """Whether a failed episode was kept, or a group lacks an episode that may be one."""
    kept = any(one.trajectory.failed and one.trajectory.sampled_tokens for one in episodes)
    sizes = Counter(one.group_key for one in episodes)
    return kept or any(size < group_size for size in sizes.values())


def advantages(
    spec: RLSpec, episodes: Sequence[StoredEpisode], values: Sequence[float], has: Sequence[bool]
) -> FloatArray:
    """Compare each episode as the job does: within its seat, step and environment.

    Args:
        spec: The job.
        episodes: Completed episodes of it.
        values: Their returns.
        has: Whether each has a return.
    """
    earned, found = np.asarray(values, dtype=np.float64), np.zeros(len(values))
    of_seat: dict[str, list[int]] = defaultdict(list)
    for n, one in enumerate(episodes):
        if has[n]:
            of_seat[one.agent].append(n)
    for agent, members in of_seat.items():
        algorithm = spec.for_agent(_policy_at(spec, agent)).algorithm
        found[members] = _compared(algorithm, [episodes[n] for n in members], earned[members])
    return found


def _compared(algorithm: PolicyGradient, episodes: Sequence[StoredEpisode], earned: FloatArray) -> FloatArray:
    """Return the advantages of the episodes at one seat."""
    groups = _numbered(one.group_key for one in episodes)
    # Rewards of different environments are never compared.
    kinds = _numbered((one.step, one.environment.model_dump_json()) for one in episodes)
    outcomes = [
        Outcome(
            trajectory=one.trajectory,
            # For `credit="turn"`, where each episode has one turn.
            rewards=[0.0] * (len(one.trajectory.turns) - 1) + [value],
            earned=value,
            group=group,
            kind=kind,
        )
        for one, value, group, kind in zip(episodes, earned.tolist(), groups, kinds, strict=True)
    ]
    credited = algorithm.credits(StepOutcomes(outcomes)).of
    return np.asarray([0.0 if one is None or isinstance(one, Mapping) else np.sum(one) for one in credited])


def _numbered(keys: Iterable[object]) -> list[int]:
    """Return a number for each key, the same for equal ones."""
    numbers: dict[object, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _policy_at(spec: RLSpec, agent: str) -> str:
    return spec.policy_at(agent) if agent in spec.agents else agent
