"""Advantages of stored episodes under another reward, as the job's algorithm computes them.

The numbers are those of `backend/learner/advantages.py`, which the SDK cannot import; a test compares both.
Where an algorithm needs more than one reward per episode, `what_is_missing` says so, and there are none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tinkergym.datasets.stored_episodes import StoredEpisode, StoredEpisodes
from tinkergym.schema.algorithms import PPO, PolicyGradient, RunningBaseline
from tinkergym.schema.job_spec import JobSpec, PlayedSpec

FloatArray = npt.NDArray[np.float64]

_STD_EPSILON = 1e-6
_ROUNDING = 1e-12
"""Relative to the largest return, or 1: smaller differences are rounding, as between 0.1 + 0.2 and 0.3."""


def what_is_missing(spec: PlayedSpec, episodes: StoredEpisodes) -> str:
    """Return why the advantages of a job's episodes cannot be computed from rewards; empty if they can."""
    if not isinstance(spec, JobSpec):
        return "the advantages of a distillation job come from its teacher, not from rewards"
    found = (_needed(spec, agent, episodes) for agent in sorted({one.agent for one in episodes}))
    return next((reason for reason in found if reason), "")


def _needed(spec: JobSpec, agent: str, episodes: StoredEpisodes) -> str:
    algorithm = spec.for_agent(_policy_at(spec, agent)).algorithm
    several_turns = any(len(one.trajectory.turns) > 1 for one in episodes if one.agent == agent)
    if isinstance(algorithm, PPO):
        return "PPO's advantages need its value head"
    if isinstance(algorithm, RunningBaseline):
        return "RunningBaseline's advantages need the means that the job kept for each kind of opponent"
    if algorithm.credit == "turn" and several_turns:
        return "credit='turn' needs a reward for each turn, and the new reward is for the whole episode"
    if algorithm.overlong_tokens or (algorithm.kl_coefficient and algorithm.kl_in == "reward"):
        return "the job's penalties (overlong_tokens, kl_in='reward') are not part of the stored rewards"
    if spec.shuffle_rewards:
        return "shuffle_rewards trains on permuted rewards"
    return ""


def advantages(
    spec: JobSpec, episodes: Sequence[StoredEpisode], values: Sequence[float], has: Sequence[bool]
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
    baseline, normalize = algorithm.comparison
    # Rewards of different environments are never compared.
    kinds = _parted([(one.step, one.environment.model_dump_json()) for one in episodes])
    groups = _parted([one.group_key for one in episodes])
    found, included = np.zeros(len(earned)), np.zeros(len(earned), dtype=bool)
    for peers in kinds if baseline == "batch" else groups:
        if len(peers) < 2:
            continue
        included[peers] = True
        own = earned[peers]
        left = own - own.mean()
        left[np.abs(left) <= _ROUNDING * max(1.0, float(np.abs(own).max()))] = 0.0
        if baseline == "leave_one_out":
            left *= len(peers) / (len(peers) - 1)
        if normalize == "std":
            left /= own.std(ddof=1) + _STD_EPSILON
        found[peers] = left
    for peers in kinds if normalize == "batch_std" else []:
        counted = [n for n in peers if included[n]]
        if len(counted) > 1:
            found[counted] /= found[counted].std(ddof=1) + _STD_EPSILON
    return found


def _parted(keys: Iterable[object]) -> list[list[int]]:
    """Return the indices of equal keys."""
    parts: dict[object, list[int]] = defaultdict(list)
    for n, key in enumerate(keys):
        parts[key].append(n)
    return list(parts.values())


def _policy_at(spec: JobSpec, agent: str) -> str:
    return spec.policy_at(agent) if agent in spec.agents else agent
