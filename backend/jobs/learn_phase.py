"""The learning of a step: episodes become advantages, advantages an update, and the update a new version.

Before anything changes, this checks that learner and engine agree on the policy (parity).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from backend.episodes.played import Played, trained_seats
from backend.jobs.job_context import JobContext
from backend.jobs.kl_metric import kl_from_the_start
from backend.jobs.train_batch import train_batch
from backend.jobs.update import GradientRequest, Updated, alone, updating
from backend.learner.pass_results import BatchPart, ForwardBackwardResult, metrics_over_parts
from backend.learner.sequences import FloatArray, TrainSequence
from backend.learner.token_loss import TokenLoss, algorithm_loss
from backend.policies.parity import parity, prompt_of
from backend.policies.trained_policy import PolicyPart
from tinkergym.schema.ids import policy_of
from tinkergym.schema.jobs.rl import RLSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """The results of an update."""

    loss: float | None
    """None if no episode could be trained on."""
    metrics: dict[str, float]
    trained_tokens: int
    """Trained tokens, each counted once."""


def learn(context: JobContext[RLSpec], step: int, played: Played) -> Learned:
    """Update the policy with the step's completed episodes; see `learning`."""
    return alone(context, learning(context, step, played))


def learn_together(
    contexts: Mapping[str, JobContext[RLSpec]], step: int, played: Played
) -> dict[str, Learned]:
    """Update several policies, with their gradients in shared calls to the learner; see `learning`.

    Args:
        contexts: By agent, each with only that agent's settings and policy.
        step: The current step.
        played: Its episodes.
    """
    learned: dict[str, Learned] = {}
    steps = {agent: learning(context, step, played) for agent, context in contexts.items()}
    results: dict[str, ForwardBackwardResult] = {}
    while steps:
        wanted: dict[str, PolicyPart] = {}
        for agent, one in list(steps.items()):
            try:
                batch = one.send(results[agent]) if agent in results else next(one)
            except StopIteration as done:
                learned[agent] = done.value
                del steps[agent]
            else:
                policy = contexts[agent].policy
                wanted[agent] = PolicyPart(policy=policy, sequences=batch.sequences, loss=batch.loss)
        if wanted:
            with next(iter(contexts.values())).clock.part("forward_backward"):
                first = next(iter(wanted.values())).policy
                results = first.forward_backward_together(wanted)
    return {agent: learned[agent] for agent in contexts}


def learning(
    context: JobContext[RLSpec], step: int, played: Played
) -> Generator[GradientRequest, ForwardBackwardResult, Learned]:
    """Update the policy with the step's completed episodes, yielding each gradient request to the caller.

    With a value head the learner runs the batch through the model once more before the first update: the
    values in the advantages are those of the policy at the start of the step.

    Raises:
        ParityError: The learner's logprobs of the sampled tokens differ from the engine's. The policy is
            unchanged.
        NonFiniteLossError: The policy is as before this optimizer step, perhaps not the step's first.
    """
    spec, algorithm = context.spec, context.spec.algorithm
    with context.clock.part("batch"):
        batch = train_batch(
            spec,
            step,
            played,
            reference=lambda asked: _reference(context, asked),
            values=context.policy.values,
            policy=policy_of(context.job_id, *context.policies),
            memory=context.memory,
        )
    sequences, metrics = batch.sequences, batch.metrics
    settings = algorithm.optimizer_step(step, spec.steps)
    if not sequences:
        metrics |= _parity_without_sequences(context, step, played)
        metrics["learning_rate"] = settings["learning_rate"]
        return Learned(loss=None, metrics=metrics, trained_tokens=0)
    with context.clock.work("certificate"):
        context.evidence.trained(batch.sources, sequences)
    metrics |= kl_from_the_start(context, step, sequences)
    loss = loss_of(spec, context.policy.context_length)
    cuts = _minibatches(batch.groups, algorithm.minibatches)
    current, compared, begun_with = [one == step - 1 for one in batch.versions], False, list[FloatArray]()
    if loss.corrects and len(cuts) > 1:
        # Each part's ratio is relative to the step's first policy; of one part, the first update has it.
        with context.clock.part("proximal"):
            begun_with = context.policy.logprobs(sequences)
        metrics |= _parity(context, step, sequences, begun_with, current)
        compared, sequences = True, _with_proximal(sequences, begun_with)

    def compare(logprobs: list[FloatArray]) -> None:
        metrics.update(_parity(context, step, sequences, logprobs, current))

    losses, trained_tokens, skipped = list[float](), 0, 0
    for number in range(algorithm.updates_per_step):
        parts: list[Updated] = []
        for cut in cuts:
            part = yield from updating(
                context,
                sequences[cut],
                loss,
                settings,
                # Only before the first optimizer step, the policy is the one that sampled.
                before_step=None if compared else compare,
            )
            compared = True
            parts.append(part)
        skipped += sum(part.skipped for part in parts)
        if number == 0:  # Later passes see the same tokens again.
            losses, trained_tokens = [part.loss for part in parts], sum(part.tokens for part in parts)
            first = begun_with or [one for part in parts for one in part.learner_logprobs]
            context.evidence.compared(step, batch.sources, sequences, first)
            if loss.corrects and len(cuts) == 1 and algorithm.updates_per_step > 1:
                sequences = _with_proximal(sequences, parts[0].learner_logprobs)
        metrics |= _metrics_of(parts)
    metrics["skipped_updates"] = float(skipped)
    return Learned(loss=float(np.mean(losses)), metrics=metrics, trained_tokens=trained_tokens)


def _metrics_of(parts: Sequence[Updated]) -> dict[str, float]:
    # In a batch without advantages, no token has a loss that could be clipped.
    return {"clip_fraction": 0.0} | metrics_over_parts(
        [BatchPart(tokens=p.tokens, judged_tokens=p.judged_tokens, metrics=p.metrics) for p in parts]
    )


def _minibatches(groups: Sequence[int], count: int) -> list[slice]:
    """Split sequences with the given groups into parts with the same number of whole groups."""
    starts = [n for n, group in enumerate(groups) if n == 0 or group != groups[n - 1]]
    count = min(count, len(starts))
    edges = [starts[len(starts) * number // count] for number in range(count)]
    return [slice(start, end) for start, end in pairwise([*edges, len(groups)])]


def _with_proximal(sequences: Sequence[TrainSequence], logprobs: Sequence[FloatArray]) -> list[TrainSequence]:
    return [
        replace(sequence, proximal_logprobs=own) for sequence, own in zip(sequences, logprobs, strict=True)
    ]


def _parity(
    context: JobContext[RLSpec],
    step: int,
    sequences: list[TrainSequence],
    learner_logprobs: list[FloatArray],
    current: list[npt.NDArray[np.bool_]],
) -> dict[str, float]:
    """Compare using tokens of the newest version: known ones, those of other parts, or new ones.

    Args:
        context: The job's context.
        step: The step being trained.
        sequences: All sequences of the step.
        learner_logprobs: For the first of them, or all.
        current: Which tokens the newest version sampled.
    """
    known, allowed = len(learner_logprobs), context.parity_threshold
    metrics = parity(allowed, sequences[:known], learner_logprobs, current[:known])
    if metrics:
        _note_agreement(
            context,
            step,
            metrics=metrics,
            sequences=sequences[:known],
            learner_logprobs=learner_logprobs,
            current=current,
        )
    fresh = [number for number in range(known, len(sequences)) if current[number].any()]
    if not metrics and fresh:
        others = [sequences[number] for number in fresh]
        logprobs = context.policy.logprobs(others)
        its_tokens = [current[number] for number in fresh]
        metrics = parity(allowed, others, logprobs, its_tokens)
        _note_agreement(
            context,
            step,
            metrics=metrics,
            sequences=others,
            learner_logprobs=logprobs,
            current=its_tokens,
        )
    # All tokens of the step are of older versions, so a few are sampled only to be compared.
    if not metrics:
        prompts = (
            prompt_of(sequence.token_ids, sequence.loss_mask, sequence.images) for sequence in sequences
        )
        metrics = context.policy.probed_parity(
            step - 1,
            prompts,
            temperature=context.spec.sampling.temperature,
            allowed=allowed,
        )
    return metrics


def _note_agreement(
    context: JobContext[RLSpec],
    step: int,
    *,
    metrics: dict[str, float],
    sequences: Sequence[TrainSequence],
    learner_logprobs: Sequence[FloatArray],
    current: Sequence[npt.NDArray[np.bool_]],
) -> None:
    """Record the comparison, for sequences sampled only by the newest version."""
    whole = [number for number in range(len(sequences)) if current[number].all()]
    with context.clock.work("certificate"):
        context.policy.note_agreement(
            step - 1,
            metrics,
            [sequences[number] for number in whole],
            [learner_logprobs[number] for number in whole],
            allowed=context.parity_threshold,
        )


def _parity_without_sequences(context: JobContext[RLSpec], step: int, played: Played) -> dict[str, float]:
    """Compare learner and engine in a step without training, using tokens sampled for this."""
    prompts = (
        prompt_of(segment.token_ids, segment.loss_mask, segment.images)
        for seat in trained_seats(played, policy_of(context.job_id, *context.policies))
        for segment in seat.trajectory.segments
        if any(segment.loss_mask)
    )
    return context.policy.probed_parity(
        step - 1,
        prompts,
        temperature=context.spec.sampling.temperature,
        allowed=context.parity_threshold,
    )


def _reference(context: JobContext[RLSpec], sequences: Sequence[TrainSequence]) -> list[FloatArray]:
    """Return the logprobs of the initial policy: the model itself, or another job's policy."""
    with context.policy.beginning(asked_again=True) as begun_with:
        return begun_with.logprobs(sequences)


def loss_of(spec: RLSpec, context_length: int) -> TokenLoss:
    """Return the job's loss; `context_length` is the model's."""
    limits, most = spec.limits, spec.limits.max_turns * spec.sampling.max_turn_tokens
    context_length = min(context_length, limits.max_context_tokens or context_length)
    return algorithm_loss(spec.algorithm, min(most, limits.max_episode_tokens or most, context_length))
