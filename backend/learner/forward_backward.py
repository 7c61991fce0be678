"""Gradients of several policies' losses, added to those that they have accumulated.

Invariant: every policy of a call gets its complete gradient, or none of them keeps one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from backend.learner.aggregation import token_weights
from backend.learner.device_turns import DeviceTurns
from backend.learner.pass_results import ForwardBackwardResult
from backend.learner.pass_runner import PassRunner
from backend.learner.policy_weights import MasteredPolicy
from backend.learner.sequences import (
    BatchTotals,
    SampledTokens,
    TokenLimits,
    TrainSequence,
    check_sequences,
)
from backend.learner.token_loss import TokenLoss
from backend.learner.train_pass import TrainPass
from backend.learner.training_states import TrainingState, TrainingStates
from tinkergym.errors import NonFiniteLossError


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyBatch:
    """One policy's part of a call that trains several."""

    sequences: Sequence[TrainSequence]
    """The policy's training batch, or a part of it, with at least one sampled token."""
    loss: TokenLoss
    totals: BatchTotals | None = None
    """Totals of the policy's whole batch if `sequences` is a part of it."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A policy's checked part, ready to compute."""

    state: TrainingState
    sequences: Sequence[TrainSequence]
    train_pass: TrainPass


def forward_backward(
    parts: Mapping[str, PolicyBatch],
    *,
    states: TrainingStates,
    limits: TokenLimits,
    runner: PassRunner,
    turns: DeviceTurns,
) -> dict[str, ForwardBackwardResult]:
    """Add to the gradients of several policies, bitwise as if each trained alone.

    Their ranks, losses and batch sizes may differ, and full-parameter policies may be combined with adapters.
    The policies are computed one after the other on the shared base model: in a common row, a matrix product
    or the end of a vectorised loop may round a token differently than in a row of its own policy.

    Raises:
        NotFoundError: There is no such policy; nothing was computed.
        InvalidRequestError: A sequence cannot be trained on; nothing was computed.
        NonFiniteLossError: A loss is NaN or infinite. The accumulated gradients of all policies in the call
            are discarded.
    """
    with turns.working():
        # All of them are checked before any is computed.
        begun = {
            policy_id: begin(states[policy_id], part, limits=limits, runner=runner)
            for policy_id, part in parts.items()
        }
    results: dict[str, ForwardBackwardResult] = {}
    try:
        for policy_id, work in begun.items():
            learned = work.train_pass.learned
            for only, gradient in ((learned, True), (~learned, False)):
                runner.run(work.state.policy, work.sequences, work.train_pass, only=only, gradient=gradient)
            with turns.working():
                results[policy_id] = _finite(policy_id, work.train_pass.result())
    except BaseException:
        # A partial gradient must not be mistaken for a complete one, nor some policies' for all.
        for work in begun.values():
            work.state.forget_gradient()
        raise
    for work in begun.values():
        # Only now, when all of them are complete.
        work.state.pending = True
    return results


def begin(state: TrainingState, part: PolicyBatch, *, limits: TokenLimits, runner: PassRunner) -> Begun:
    """Check what can be checked before computing."""
    tokens = SampledTokens.of(part.sequences)
    check_sequences(limits, part.sequences)
    weights = token_weights(
        tokens.counts,
        part.loss.aggregation,
        totals=part.totals or BatchTotals.of(part.sequences),
        constant_tokens=part.loss.constant_tokens,
        weights=[sequence.weight for sequence in part.sequences],
    )
    policy, head = state.policy, state.value_head
    workers = runner.workers_for(policy)
    aside = workers > 1 or isinstance(policy, MasteredPolicy)
    train_pass = TrainPass(
        policy.lm,
        tokens,
        weights=weights,
        loss=part.loss,
        aside=[*policy.computed, *(head.parameters.values() if head else ())] if aside else (),
        into=state.optimizer.parameters if aside else (),
        workers=workers,
        value_head=head,
    )
    return Begun(state, part.sequences, train_pass)


def _finite(policy_id: str, result: ForwardBackwardResult) -> ForwardBackwardResult:
    if math.isfinite(result.loss):
        return result
    lost = [i for i, logprobs in enumerate(result.learner_logprobs) if not np.isfinite(logprobs).all()]
    if lost:
        why = (
            f"the model's logprobs of {len(lost)} sequences are not finite, the first being sequence "
            f"{lost[0]}"
        )
        hint = "the weights have diverged: resume from an earlier checkpoint with a lower learning_rate"
    else:
        why = (
            f"its importance ratios overflow: learner and sampling logprobs differ by up to "
            f"{result.metrics['logprob_gap_max']:.3g} nats"
        )
        hint = "check for sampling logprobs of a different policy, or extreme advantages"
    raise NonFiniteLossError(
        f"the loss of policy {policy_id} is {result.loss}, and its accumulated gradient was dropped: {why}",
        hint=hint,
    )
