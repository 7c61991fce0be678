"""The learning of a step: episodes become advantages, advantages an update, and the update a new version.

Checks on the way that learner and engine mean the same policy (parity), before anything is changed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from backend.learner.advantages import group_advantages
from backend.learner.losses import LossConfig
from backend.learner.sequences import TrainSequence
from backend.training.job_context import JobContext
from backend.training.schedule import learning_rate
from backend.training.step_report import Played
from tinkergym.errors import ParityError
from tinkergym.loop.trajectory import Trajectory
from tinkergym.wire import JobSpec

_SHUFFLE = 2
"""Last word of the entropy that the control experiment's permutation is drawn from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What an update did."""

    loss: float | None
    """None when no episode could be learned from."""
    metrics: dict[str, float]


def learn(context: JobContext, step: int, played: Played) -> Learned:
    """Update the policy by the step's completed episodes.

    Raises:
        ParityError: The learner's logprobs of the sampled tokens are not those that the engine reported. The
            policy is as before.
        NonFiniteGradientError: The policy is as before.
    """
    spec, algorithm = context.spec, context.spec.algorithm
    with context.clock.part("batch"):
        sequences, metrics = _sequences(spec, step, played)
    rate = learning_rate(algorithm, step, spec.steps)
    if not sequences:
        return Learned(loss=None, metrics={**metrics, "learning_rate": rate})
    config = LossConfig(
        clip_low=algorithm.clip_low,
        clip_high=algorithm.clip_high,
        aggregation=algorithm.aggregation,
        entropy_coefficient=algorithm.entropy_coefficient,
        constant_tokens=_most_tokens(spec, context.engine.context_length),
    )
    loss: float | None = None
    for update in range(algorithm.updates_per_step):
        with context.clock.part("forward_backward"):
            result = context.learner.forward_backward(context.job_id, sequences, config)
        if update == 0:
            # Only the first update sees the very policy that sampled.
            metrics |= _parity(spec, sequences, result.learner_logprobs)
            loss = result.loss
        with context.clock.part("optim_step"):
            stepped = context.learner.optim_step(
                context.job_id,
                learning_rate=rate,
                max_grad_norm=algorithm.max_grad_norm,
                weight_decay=algorithm.weight_decay,
            )
        metrics |= {**result.metrics, **stepped.metrics}
    return Learned(loss=loss, metrics=metrics)


def _sequences(spec: JobSpec, step: int, played: Played) -> tuple[list[TrainSequence], dict[str, float]]:
    algorithm = spec.algorithm
    trajectories = [result.trajectory for _, result in played]
    advantages = group_advantages(
        [trajectory.episode_return for trajectory in trajectories],
        [request.group for request, _ in played],
        [_counts(spec, trajectory) for trajectory in trajectories],
        baseline=algorithm.baseline,
        normalize=algorithm.normalize,
        shuffle=np.random.default_rng([spec.seed, step, _SHUFFLE]) if spec.shuffle_rewards else None,
    )
    sequences = [
        TrainSequence.from_segment(segment, advantage=float(advantage), temperature=spec.sampling.temperature)
        for trajectory, advantage, included in zip(
            trajectories, advantages.values, advantages.included, strict=True
        )
        if included
        for segment in trajectory.segments
        if any(segment.loss_mask)
    ]
    return sequences, {
        "zero_variance_groups": float(advantages.zero_variance_groups),
        "broken_groups": float(advantages.broken_groups),
    }


def _counts(spec: JobSpec, trajectory: Trajectory) -> bool:
    """Whether an episode is learned from and enters a baseline."""
    # A failure before the first answer has nothing to learn from, and its return would be a made-up 0.
    kept = spec.on_failure == "keep" and trajectory.failed and trajectory.sampled_tokens > 0
    return trajectory.completed or kept


def _parity(
    spec: JobSpec, sequences: list[TrainSequence], learner_logprobs: list[np.ndarray]
) -> dict[str, float]:
    sampled = np.concatenate(
        [
            np.asarray([p for p in sequence.sampling_logprobs if p is not None], dtype=np.float32)
            for sequence in sequences
        ]
    )
    drift = np.abs(np.concatenate(learner_logprobs) - sampled)
    mean, largest = float(drift.mean()), float(drift.max())
    if not mean <= spec.parity_threshold:  # also if it is NaN
        raise ParityError(
            f"the learner's and the engine's logprobs of the same tokens differ by {mean:.3g} nats on "
            f"average and {largest:.3g} at most, over the threshold of {spec.parity_threshold:.3g}",
            hint="the engine does not sample the policy that is trained; report this with the job's log",
            field="parity_threshold",
        )
    return {"parity_mean": mean, "parity_max": largest}


def _most_tokens(spec: JobSpec, context_length: int) -> int:
    limits, most = spec.limits, spec.limits.max_turns * spec.sampling.max_turn_tokens
    context_length = min(context_length, limits.max_context_tokens or context_length)
    return min(most, limits.max_episode_tokens or most, context_length)
