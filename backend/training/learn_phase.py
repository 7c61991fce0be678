"""The learning of a step: episodes become advantages, advantages an update, and the update a new version.

Checks on the way that learner and engine mean the same policy (parity), before anything is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from backend.learner.importance import ImportanceCorrection
from backend.learner.losses import LossConfig
from backend.learner.sequences import FloatArray, TrainSequence
from backend.learner.value_loss import ValueLoss
from backend.training import checkpointing
from backend.training.job_context import JobContext
from backend.training.parity_probe import probe
from backend.training.schedule import learning_rate
from backend.training.step_report import Played
from backend.training.train_batch import train_batch
from tinkergym.errors import ParityError
from tinkergym.wire import JobSpec, PlayedSpec
from tinkergym.wire_algorithms import PPO, PolicyGradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What an update did."""

    loss: float | None
    """None when no episode could be learned from."""
    metrics: dict[str, float]


def learn(context: JobContext[JobSpec], step: int, played: Played) -> Learned:
    """Update the policy by the step's completed episodes.

    With a value head the learner runs the batch through the model once more before the first update: the
    values that stand in the advantages are those of the policy that the step begins with.

    Raises:
        ParityError: The learner's logprobs of the sampled tokens are not those that the engine reported. The
            policy is as before.
        NonFiniteGradientError: The policy is as before this optimiser step; it may not be the step's first.
    """
    spec, algorithm = context.spec, context.spec.algorithm
    with context.clock.part("batch"):
        batch = train_batch(
            spec,
            step,
            played,
            reference=lambda asked: _reference(context, asked),
            values=lambda asked: context.learner.values(context.job_id, asked),
        )
    sequences, metrics = batch.sequences, batch.metrics
    rate = learning_rate(algorithm, step, spec.steps)
    if not sequences:
        return Learned(loss=None, metrics={**metrics, "learning_rate": rate})
    config = loss_config(spec, context.engine.context_length)
    cuts = _minibatches(batch.groups, algorithm.minibatches)
    current = [versions == step - 1 for versions in batch.versions]
    # The logprobs of all tokens by the policy that the step begins with, where they are known.
    begun_with: list[FloatArray] | None = None
    if config.correction is not None and len(cuts) > 1:
        # The ratio of each part begins there. With one part, its first update finds them on the way.
        with context.clock.part("proximal"):
            begun_with = context.learner.logprobs(context.job_id, sequences)
        sequences = _with_proximal(sequences, begun_with)
    losses: list[float] = []
    for _ in range(algorithm.updates_per_step):
        parts: list[tuple[int, dict[str, float]]] = []
        for cut in cuts:
            with context.clock.part("forward_backward"):
                result = context.learner.forward_backward(context.job_id, sequences[cut], config)
            if not losses:
                # Only before the first optimiser step the policy is the one that sampled.
                if begun_with is None and len(cuts) == 1:
                    begun_with = result.learner_logprobs
                if begun_with is not None:
                    compared = parity(spec, sequences, begun_with, current)
                else:
                    compared = parity(spec, sequences[cut], result.learner_logprobs, current[cut])
                metrics |= compared or _parity_elsewhere(context, step, sequences, current, begun_with)
                if config.correction is not None and len(cuts) == 1 and algorithm.updates_per_step > 1:
                    sequences = _with_proximal(sequences, result.learner_logprobs)
            losses.append(result.loss)
            with context.clock.part("optim_step"):
                stepped = context.learner.optim_step(
                    context.job_id,
                    learning_rate=rate,
                    max_grad_norm=algorithm.max_grad_norm,
                    weight_decay=algorithm.weight_decay,
                    value_learning_rate=_value_rate(algorithm, rate),
                )
            tokens = sum(len(own) for own in result.learner_logprobs)
            # Of a batch without any advantage no token has a loss that could be clipped.
            parts.append((tokens, {"clip_fraction": 0.0, **result.metrics, **stepped.metrics}))
        metrics |= _over_parts(parts)
    return Learned(loss=float(np.mean(losses[: len(cuts)])), metrics=metrics)


def _minibatches(groups: Sequence[int], count: int) -> list[slice]:
    """Cut sequences, of which the groups are given, into parts of equally many whole groups."""
    starts = [n for n, group in enumerate(groups) if n == 0 or group != groups[n - 1]]
    count = min(count, len(starts))
    edges = [starts[len(starts) * number // count] for number in range(count)]
    return [slice(start, end) for start, end in pairwise([*edges, len(groups)])]


def _with_proximal(sequences: Sequence[TrainSequence], logprobs: Sequence[FloatArray]) -> list[TrainSequence]:
    return [
        replace(sequence, proximal_logprobs=own) for sequence, own in zip(sequences, logprobs, strict=True)
    ]


def _parity_elsewhere(
    context: JobContext[JobSpec],
    step: int,
    sequences: list[TrainSequence],
    current: list[npt.NDArray[np.bool_]],
    begun_with: list[FloatArray] | None,
) -> dict[str, float]:
    """Compare where the first part has no token of the newest version: in the others, or in new ones."""
    fresh = [sequence for sequence, own in zip(sequences, current, strict=True) if own.any()]
    if begun_with is None and fresh:
        marks = [own for own in current if own.any()]
        return parity(context.spec, fresh, context.learner.logprobs(context.job_id, fresh), marks)
    probed = probe(context, step, sequences)
    return parity(context.spec, probed, context.learner.logprobs(context.job_id, probed))


def _over_parts(parts: Sequence[tuple[int, dict[str, float]]]) -> dict[str, float]:
    """Put the metrics of a pass's parts together: the largest of `..._max` and spikes, else token means."""
    if len(parts) == 1:
        return parts[0][1]
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for _, metrics in parts for name in metrics):
        if name.endswith(("_max", "_spike")):
            found[name] = max(metrics[name] for _, metrics in parts if name in metrics)
        else:
            weighed = sum(tokens * metrics.get(name, 0.0) for tokens, metrics in parts)
            found[name] = weighed / sum(tokens for tokens, _ in parts)
    return found


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
        value=ValueLoss(coefficient=algorithm.value_coefficient, clip=algorithm.value_clip)
        if isinstance(algorithm, PPO)
        else None,
    )


def _value_rate(algorithm: PolicyGradient, rate: float) -> float | None:
    """Return the value head's learning rate where the policy's is `rate`: both follow one schedule."""
    if not isinstance(algorithm, PPO):
        return None
    return algorithm.value_learning_rate * (rate / algorithm.learning_rate)


def _reference(context: JobContext[JobSpec], sequences: Sequence[TrainSequence]) -> list[FloatArray]:
    """Ask the policy that the job began with: the model itself, or the other job's that it names."""
    with checkpointing.beginning(context) as policy_id:
        return context.learner.logprobs(policy_id, sequences)


def parity(
    spec: PlayedSpec,
    sequences: list[TrainSequence],
    learner_logprobs: list[FloatArray],
    current: list[npt.NDArray[np.bool_]] | None = None,
) -> dict[str, float]:
    """Compare the learner's logprobs with those that came with the tokens.

    Args:
        spec: Of the job.
        sequences: What was learned from.
        learner_logprobs: Of each sequence's sampled tokens, by the policy as it was before.
        current: Which of those tokens this very policy sampled; None for all. Others are not compared.

    Returns:
        `parity_mean` and `parity_max` in nats; nothing where no token can be compared.

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
    if current is not None:
        drift = drift[np.concatenate(current)]
        if not len(drift):
            return {}
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
