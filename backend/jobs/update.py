"""One optimizer step of a job that plays, with its parts on the job's clock."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from backend.jobs.job_context import JobContext
from backend.learner.pass_results import ForwardBackwardResult
from backend.learner.sequences import FloatArray, TrainSequence
from backend.learner.token_loss import TokenLoss
from tinkergym.schema.jobs.training_spec import TrainingSpec
from tinkergym.schema.optimizer import OptimizerStep

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated:
    """The results of an optimizer step."""

    loss: float
    learner_logprobs: list[FloatArray]
    """Per sequence, one per sampled token, by the policy before the update."""
    metrics: dict[str, float]
    judged_tokens: int
    """See `ForwardBackwardResult`."""
    skipped: bool
    """See `OptimStepResult`."""

    @property
    def tokens(self) -> int:
        """Number of trained tokens."""
        return sum(len(own) for own in self.learner_logprobs)


@dataclass(frozen=True, slots=True)
class GradientRequest:
    """A policy's request to its learner: the gradient of a loss over sequences."""

    sequences: list[TrainSequence]
    loss: TokenLoss


Updating = Generator[GradientRequest, ForwardBackwardResult, Updated]
"""An update that yields gradient requests to its caller, who may compute those of several policies at
once."""


def updating(
    context: JobContext[TrainingSpec],
    sequences: list[TrainSequence],
    loss: TokenLoss,
    settings: OptimizerStep,
    *,
    before_step: Callable[[list[FloatArray]], None] | None = None,
) -> Updating:
    """Learn from sequences and take one optimizer step.

    Args:
        context: The job's context.
        sequences: The sequences to train on.
        loss: The loss.
        settings: Settings of the optimizer step.
        before_step: Called with the learner's logprobs before anything changes; if it raises, the policy is
            unchanged.

    Raises:
        NonFiniteLossError: The policy is unchanged.
        TinkerGymError: The job was cancelled or must leave its worker; see `JobControl.check_within_step`.
    """
    context.control.check_within_step()
    result = yield GradientRequest(sequences, loss)
    if before_step is not None:
        before_step(result.learner_logprobs)
    with context.clock.part("optim_step"):
        stepped = context.policy.optim_step(**settings)
    return Updated(
        loss=result.loss,
        learner_logprobs=result.learner_logprobs,
        metrics={**result.metrics, **stepped.metrics},
        judged_tokens=result.judged_tokens,
        skipped=stepped.skipped,
    )


def update(
    context: JobContext[TrainingSpec],
    sequences: list[TrainSequence],
    loss: TokenLoss,
    settings: OptimizerStep,
    *,
    before_step: Callable[[list[FloatArray]], None] | None = None,
) -> Updated:
    """Take one optimizer step of a single policy; see `updating`."""
    return alone(context, updating(context, sequences, loss, settings, before_step=before_step))


def alone(
    context: JobContext[Any], steps: Generator[GradientRequest, ForwardBackwardResult, Result]
) -> Result:
    """Run an update of a single policy, and return its result."""
    try:
        wanted = next(steps)
        while True:
            with context.clock.part("forward_backward"):
                result = context.policy.forward_backward(wanted.sequences, wanted.loss)
            wanted = steps.send(result)
    except StopIteration as done:
        found: Result = done.value
        return found
