"""From a step's episodes to what the learner trains on: rewards, advantages, and sequences that carry them.

Pure but for one question to the model: what a reference policy thinks of the sampled tokens, and that only
where a job has a KL penalty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from backend.learner.advantages import Advantages, group_advantages, turn_advantages
from backend.learner.kl import kl_estimates
from backend.learner.sequences import FloatArray, TrainSequence
from backend.learner.shaping import returns_to_go
from backend.training.dynamic_sampling import learned_from
from backend.training.step_report import Played
from backend.training.turn_rewards import counts, shaped_rewards
from tinkergym.loop.trajectory import Segment, Trajectory
from tinkergym.wire import JobSpec

_SHUFFLE = 2
"""Last word of the entropy that the control experiment's permutation is drawn from."""

Reference = Callable[[Sequence[TrainSequence]], list[FloatArray]]
"""Returns the reference policy's logprobs of the sampled tokens, per sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """What a step learns from."""

    sequences: list[TrainSequence]
    metrics: dict[str, float]


def train_batch(spec: JobSpec, step: int, played: Played, reference: Reference) -> TrainBatch:
    """Turn a step's episodes into a train batch.

    Args:
        spec: Of the job.
        step: Its number, from which the control experiment's shuffle is drawn.
        played: All episodes of the step.
        reference: Asked once, and only if the job has a KL penalty.
    """
    kept, replaced = learned_from(spec, played)
    trajectories = [result.trajectory for _, result in kept]
    groups = [request.group for request, _ in kept]
    counted = [counts(spec, trajectory) for trajectory in trajectories]
    rewards = [shaped_rewards(spec, trajectory) for trajectory in trajectories]
    metrics = _penalty_metrics(spec, trajectories, rewards, replaced)

    found: dict[tuple[int, int], FloatArray] = {}
    if spec.algorithm.kl_coefficient:
        found = _reference_logprobs(spec, trajectories, counted, reference)
        if spec.algorithm.kl_in == "reward":
            metrics["kl"] = _take_off_kl(spec, trajectories, rewards, found)
    credited, advantages = _credits(spec, step, rewards, groups, counted)
    metrics |= {
        "zero_variance_groups": float(advantages.zero_variance_groups),
        "broken_groups": float(advantages.broken_groups),
    }
    if spec.algorithm.credit == "turn":
        metrics["lone_turns"] = float(advantages.lone_turns)
    sequences = [
        sequence
        for episode, trajectory in enumerate(trajectories)
        if advantages.included[episode]
        for number in range(len(trajectory.segments))
        for sequence in _sequences(spec, trajectory, number, credited[episode], found.get((episode, number)))
    ]
    return TrainBatch(sequences=sequences, metrics=metrics)


def _credits(
    spec: JobSpec,
    step: int,
    rewards: list[list[float]],
    groups: list[int],
    counted: list[bool],
) -> tuple[list[float] | list[npt.NDArray[np.float64]], Advantages]:
    """Return each episode's advantage, or those of its turns."""
    algorithm = spec.algorithm
    baseline, normalize = algorithm.comparison
    shuffle = np.random.default_rng([spec.seed, step, _SHUFFLE]) if spec.shuffle_rewards else None
    if algorithm.credit == "turn":
        earned = [returns_to_go(some, discount=algorithm.discount) for some in rewards]
        return turn_advantages(
            earned, groups, counted, baseline=baseline, normalize=normalize, shuffle=shuffle
        )
    returns = [sum(some) for some in rewards]
    advantages = group_advantages(
        returns, groups, counted, baseline=baseline, normalize=normalize, shuffle=shuffle
    )
    return [float(value) for value in advantages.values], advantages


def _sequences(
    spec: JobSpec,
    trajectory: Trajectory,
    number: int,
    credit: float | npt.NDArray[np.float64],
    reference: FloatArray | None,
) -> list[TrainSequence]:
    """Return a segment as one sequence, or none if nothing in it is learned from."""
    segment = trajectory.segments[number]
    turns = [(k, turn) for k, turn in enumerate(trajectory.turns) if turn.segment == number]
    per_token: float | list[float] = credit if isinstance(credit, float) else [0.0] * len(segment.token_ids)
    if isinstance(per_token, list) and not isinstance(credit, float):
        for k, turn in turns:
            per_token[turn.start : turn.end] = [float(credit[k])] * (turn.end - turn.start)
    mask = np.asarray(segment.loss_mask, dtype=bool)
    if spec.algorithm.mask_truncated:
        for _, turn in turns:
            if turn.finish_reason == "length":
                mask[turn.start : turn.end] = False
    if not mask.any():
        return []
    sequence = TrainSequence.from_segment(segment, advantage=per_token, temperature=spec.sampling.temperature)
    if spec.algorithm.mask_truncated:
        logprobs = [p if m else None for p, m in zip(segment.sampling_logprobs, mask, strict=True)]
        sequence = replace(sequence, loss_mask=mask.tolist(), sampling_logprobs=logprobs)
    if reference is not None and spec.algorithm.kl_in == "loss":
        sequence = replace(sequence, reference_logprobs=reference[mask[np.asarray(segment.loss_mask)]])
    return [sequence]


def _reference_logprobs(
    spec: JobSpec, trajectories: list[Trajectory], counted: list[bool], reference: Reference
) -> dict[tuple[int, int], FloatArray]:
    """Ask the reference about every segment that may be learned from, by (episode, segment)."""
    asked = [
        (episode, number)
        for episode, trajectory in enumerate(trajectories)
        if counted[episode]
        for number, segment in enumerate(trajectory.segments)
        if any(segment.loss_mask)
    ]
    if not asked:
        return {}
    sequences = [
        TrainSequence.from_segment(
            trajectories[episode].segments[number], advantage=0.0, temperature=spec.sampling.temperature
        )
        for episode, number in asked
    ]
    return dict(zip(asked, reference(sequences), strict=True))


def _take_off_kl(
    spec: JobSpec,
    trajectories: list[Trajectory],
    rewards: list[list[float]],
    reference: dict[tuple[int, int], FloatArray],
) -> float:
    """Lower each turn's reward by the KL of its answer, in place; returns the mean over tokens, in nats."""
    algorithm = spec.algorithm
    total, tokens = 0.0, 0
    for (episode, number), logprobs in reference.items():
        segment = trajectories[episode].segments[number]
        estimates = _at_tokens(
            segment,
            kl_estimates(
                torch.tensor([p for p in segment.sampling_logprobs if p is not None], dtype=torch.float64),
                torch.from_numpy(logprobs.astype(np.float64)),
                algorithm.kl_estimator,
            ).numpy(),
        )
        for k, turn in enumerate(trajectories[episode].turns):
            if turn.segment == number:
                rewards[episode][k] -= algorithm.kl_coefficient * float(
                    estimates[turn.start : turn.end].sum()
                )
        total, tokens = total + float(estimates.sum()), tokens + len(logprobs)
    return total / max(tokens, 1)


def _at_tokens(segment: Segment, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Spread one value per sampled token over all tokens, 0 elsewhere."""
    spread = np.zeros(len(segment.token_ids))
    spread[np.asarray(segment.loss_mask, dtype=bool)] = values
    return spread


def _penalty_metrics(
    spec: JobSpec, trajectories: list[Trajectory], rewards: list[list[float]], replaced: int
) -> dict[str, float]:
    algorithm = spec.algorithm
    metrics: dict[str, float] = {}
    answers = max(sum(len(trajectory.turns) for trajectory in trajectories), 1)
    if algorithm.dynamic_sampling_rounds:
        metrics["replaced_groups"] = float(replaced)
    if algorithm.overlong_tokens:
        given = sum(trajectory.episode_return for trajectory in trajectories)
        metrics["overlong_penalty_mean"] = (given - sum(map(sum, rewards))) / answers
    if algorithm.mask_truncated:
        cut = sum(turn.finish_reason == "length" for t in trajectories for turn in t.turns)
        metrics["truncated_fraction"] = cut / answers
    return metrics
