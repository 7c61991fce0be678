"""A policy that a job trains: the complete interface for its loop, which has no other way to train.

`PoolPolicy` is the real one, on a pool's learner and engine. Nothing here imports torch, so a loop runs in
tests against a scripted one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol, Unpack

from pydantic import JsonValue

from backend.learner.pass_results import ForwardBackwardResult, OptimStepResult
from backend.learner.sequences import BatchTotals, FloatArray, TokenLimits, TrainSequence
from backend.learner.token_loss import TokenLoss
from backend.policies import parity
from backend.policies.publishing import TakenWeights
from backend.store.stored_facts import Fact
from tinkergym.errors import NonFiniteLossError
from tinkergym.schema.events import CheckpointView
from tinkergym.schema.optimizer import OptimizerStep


class FrozenPolicy(Protocol):
    """Weights that are used but not trained: an initial policy, or a teacher."""

    def logprobs(self, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """Return the logprobs of the sampled tokens, per sequence in input order."""
        ...

    def close(self) -> None:
        """Free the memory."""
        ...


class TrainedPolicy(Protocol):
    """One policy of a job. Calls are made one after the other, from the job's thread."""

    @property
    def id(self) -> str:
        """Its name in learner, engine and directory; not the job's, which may train several."""
        ...

    # --- its life ---

    def restore(self, at_most: int | None = None) -> int:
        """Make the policy, as the last attempt saved it or new; returns the step of the checkpoint, or 0.

        Args:
            at_most: Skip checkpoints of later steps.
        """
        ...

    def release(self) -> None:
        """Leave the last published version for sampling until it is evicted."""
        ...

    def forget(self) -> None:
        """Free the learner's memory for it."""
        ...

    # --- training ---

    @property
    def limits(self) -> TokenLimits:
        """Limits of the model."""
        ...

    @property
    def learning_seconds(self) -> float:
        """Seconds in which the learner worked, for any policy; increases monotonically."""
        ...

    @property
    def is_changing(self) -> bool:
        """Whether the policy is no longer that of the last finished step, or may not be."""
        ...

    def step_finished(self) -> None:
        """Record that a step is done: the current policy counts as its version."""
        ...

    def forward_backward(
        self, sequences: Sequence[TrainSequence], loss: TokenLoss, *, totals: BatchTotals | None = None
    ) -> ForwardBackwardResult:
        """Add the gradient of the batch's loss to the pending gradient; see `Learner`."""
        ...

    def forward_backward_together(self, parts: Mapping[str, PolicyPart]) -> dict[str, ForwardBackwardResult]:
        """Add the gradients of several policies of the job, bitwise as if each were trained alone.

        Args:
            parts: By a key chosen by the caller; this policy may be among them.

        Raises:
            TinkerGymError: As `forward_backward`; a policy that shared its call with the one that failed has
                no gradient then.
        """
        ...

    def optim_step(self, **settings: Unpack[OptimizerStep]) -> OptimStepResult:
        """Apply the pending gradient, and clear it; see `Learner`."""
        ...

    def has_gradient(self) -> bool:
        """Whether there is a pending gradient."""
        ...

    def forget_gradient(self) -> None:
        """Drop the pending gradient, if there is one."""
        ...

    def logprobs(self, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """Return the logprobs of the sampled tokens, per sequence in input order."""
        ...

    def values(self, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """Return the value head's estimate before each sampled token, per sequence in input order."""
        ...

    # --- what it is compared with ---

    def beginning(self, *, asked_again: bool = False) -> AbstractContextManager[FrozenPolicy]:
        """Return the policy that the job started from; see `CheckpointKeeping.beginning`."""
        ...

    def open_teacher(self, teacher: str) -> FrozenPolicy:
        """Load a model, or another job's policy; the caller closes it.

        Raises:
            NotFoundError: Its checkpoint was deleted.
            UnknownModelError: There is no such model.
        """
        ...

    # --- versions ---

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and completion together that the engine samples."""
        ...

    @property
    def sampling_seconds(self) -> float:
        """Seconds in which the engine computed, for any policy; increases monotonically."""
        ...

    def take_weights(self) -> TakenWeights:
        """Copy the current weights, and start hashing them."""
        ...

    def publish(self, version: int, taken: TakenWeights, *, let_finish: bool = False) -> None:
        """Publish a version to the engine, and check that it arrived.

        Args:
            version: Its number.
            taken: Its weights, from `take_weights`.
            let_finish: See `SamplingEngine.publish`.

        Raises:
            ParityError: Other weights arrived.
        """
        ...

    def recorded_sha256(self, version: int) -> str | None:
        """Return the hash that an earlier attempt recorded for a version; None if there is none."""
        ...

    def probed_parity(
        self, version: int, prompts: Iterable[parity.Prompt], *, temperature: float, allowed: float
    ) -> dict[str, float]:
        """Compare learner and engine by a few tokens sampled from the newest version now.

        Args:
            version: The engine's newest version; the learner has the same weights.
            prompts: Only the first few are used.
            temperature: Sampling temperature.
            allowed: Mean difference in nats.

        Returns:
            See `parity`; empty without prompts.

        Raises:
            ParityError: They differ by more than `allowed`.
            ServiceUnavailableError: The engine did not respond.
        """
        ...

    def note_agreement(
        self,
        version: int,
        metrics: Mapping[str, float],
        sequences: Sequence[TrainSequence],
        logprobs: Sequence[FloatArray],
        *,
        allowed: float,
        by_probe: bool = False,
    ) -> None:
        """Record how learner and engine compare, and once what the adapter does.

        Args:
            version: The version that sampled the sequences' tokens.
            metrics: The result of `parity`.
            sequences: The compared sequences.
            logprobs: The learner's logprobs of their sampled tokens.
            allowed: Mean difference in nats.
            by_probe: Whether they were sampled for the comparison.
        """
        ...

    def take_facts(self) -> list[Fact]:
        """Return the facts about publishes and comparisons since the last call, for the certificate."""
        ...

    def await_version(self, version: int | None) -> None:
        """Let requests wait for a version that will be published again; None means that it is."""
        ...

    def let_engine_sleep(self) -> None:
        """Let the engine free its memory for the learner; publishing wakes it."""
        ...

    def expect_requests_for(self, version: int) -> None:
        """From now on hold requests for a version that is not published yet."""
        ...

    def answer_kept_requests(self) -> None:
        """Pass held requests to the engine: the version is published."""
        ...

    def refuse_kept_requests(self) -> None:
        """Answer held requests with an error: the version will not be published."""
        ...

    # --- checkpoints ---

    def checkpoints(self) -> list[CheckpointView]:
        """Return the stored checkpoints, oldest first."""
        ...

    def save(self, step: int, *, version: int | None = None) -> None:
        """Write a checkpoint of `step`, and record it; see `CheckpointKeeping.save`."""
        ...

    def tidy(self, step: int) -> None:
        """Drop the checkpoints that are superseded by the one of `step`."""
        ...

    def keep_steps(self, steps: Iterable[int], *, why: str = "evaluations") -> None:
        """Keep the checkpoints of these steps, instead of those kept for this reason before."""
        ...

    @property
    def notes(self) -> Mapping[str, JsonValue]:
        """State of the job's loop in each checkpoint, available again after `restore`."""
        ...

    def note(self, notes: Mapping[str, JsonValue]) -> None:
        """Write this into the checkpoints from now on."""
        ...

    def load(self, policy: str, *, with_optimizer: bool) -> None:
        """Continue from a stored version; see `CheckpointKeeping.load_aside`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPart:
    """Training data of one of several policies."""

    policy: TrainedPolicy
    sequences: Sequence[TrainSequence]
    loss: TokenLoss


class StepChange:
    """Whether the current step has begun to change the policy. Until then the last good version can be saved.

    At first, and after each `finished`, the policy is that of the last finished step.
    """

    def __init__(self) -> None:
        self._begun = False

    @property
    def begun(self) -> bool:
        """Whether the policy is no longer that of the last finished step, or may not be."""
        return self._begun

    @contextmanager
    def applying(self) -> Iterator[None]:
        """Surrounds each of a step's optimizer steps, and nothing else."""
        before, self._begun = self._begun, True
        try:
            yield
        except NonFiniteLossError:
            # The only error that guarantees unchanged weights and moments.
            self._begun = before
            raise

    def finished(self) -> None:
        """Record that the step is done: the current policy counts as its version."""
        self._begun = False
