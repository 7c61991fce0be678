"""The learning of a step: episodes become advantages, advantages an update, and the update a new version.

Checks on the way that learner and engine mean the same policy (parity), before anything is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from backend.learner.importance import ImportanceCorrection
from backend.learner.losses import LossConfig
from backend.learner.sequences import FloatArray, TrainSequence
from backend.training import checkpointing
from backend.training.job_context import JobContext
from backend.training.schedule import learning_rate
from backend.training.step_report import Played
from backend.training.train_batch import train_batch
from tinkergym.errors import ParityError
from tinkergym.wire import JobSpec, PlayedSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What an update did."""

    loss: float | None
    """None when no episode could be learned from."""
    metrics: dict[str, float]


def learn(context: JobContext[JobSpec], step: int, played: Played) -> Learned:
    """Update the policy by the step's completed episodes.

    Raises:
        ParityError: The learner's logprobs of the sampled tokens are not those that the engine reported. The
            policy is as before.
        NonFiniteGradientError: The policy is as before.
    """
    spec, algorithm = context.spec, context.spec.algorithm
    with context.clock.part("batch"):
        batch = train_batch(spec, step, played, lambda asked: _reference(context, asked))
    sequences, metrics = batch.sequences, batch.metrics
    rate = learning_rate(algorithm, step, spec.steps)
    if not sequences:
        return Learned(loss=None, metrics={**metrics, "learning_rate": rate})
    config = loss_config(spec, context.engine.context_length)
    loss: float | None = None
    for update in range(algorithm.updates_per_step):
        with context.clock.part("forward_backward"):
            result = context.learner.forward_backward(context.job_id, sequences, config)
        if update == 0:
            # Only the first update sees the very policy that sampled.
            metrics |= parity(spec, sequences, result.learner_logprobs)
            loss = result.loss
            if config.correction is not None and algorithm.updates_per_step > 1:
                sequences = [
                    replace(sequence, proximal_logprobs=logprobs)
                    for sequence, logprobs in zip(sequences, result.learner_logprobs, strict=True)
                ]
        with context.clock.part("optim_step"):
            stepped = context.learner.optim_step(
                context.job_id,
                learning_rate=rate,
                max_grad_norm=algorithm.max_grad_norm,
                weight_decay=algorithm.weight_decay,
            )
        # Of a batch without any advantage no token has a loss that could be clipped.
        metrics |= {"clip_fraction": 0.0, **result.metrics, **stepped.metrics}
    return Learned(loss=loss, metrics=metrics)


def loss_config(spec: JobSpec, context_length: int) -> LossConfig:
    """Return the loss that a job asks for; `context_length` is the model's."""
    algorithm = spec.algorithm
    correction = None
    if algorithm.importance_correction != "none":
        correction = ImportanceCorrection(
            kind=algorithm.importance_correction,
            cap=algorithm.importance_cap,
            level=algorithm.importance_level,
        )
    return LossConfig(
        name=algorithm.loss,
        clip_low=algorithm.clip_low,
        clip_high=algorithm.clip_high,
        dual_clip=algorithm.dual_clip,
        dro_beta=algorithm.dro_beta,
        aggregation=algorithm.aggregation,
        entropy_coefficient=algorithm.entropy_coefficient,
        constant_tokens=_most_tokens(spec, context_length),
        kl_coefficient=algorithm.kl_coefficient if algorithm.kl_in == "loss" else 0.0,
        kl_estimator=algorithm.kl_estimator,
        correction=correction,
    )


def _reference(context: JobContext[JobSpec], sequences: Sequence[TrainSequence]) -> list[FloatArray]:
    """Ask the policy that the job began with: the model itself, or the other job's that it names."""
    with checkpointing.beginning(context) as policy_id:
        return context.learner.logprobs(policy_id, sequences)


def parity(
    spec: PlayedSpec, sequences: list[TrainSequence], learner_logprobs: list[FloatArray]
) -> dict[str, float]:
    """Compare the learner's logprobs with those that came with the tokens.

    Raises:
        ParityError: They differ by more than the job allows.
    """
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
