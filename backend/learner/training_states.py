"""The policies of a learner and what their training has accumulated.

Invariant: a policy is listed exactly while its parameters exist; a gradient is `pending` only if all of it
was computed, so that a step or a checkpoint never uses half of one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from backend.learner.pass_results import ForwardBackwardResult, OptimStepResult
from backend.learner.policy_optimizer import PolicyOptimizer
from backend.learner.policy_weights import FullPolicy, LoraPolicy
from backend.learner.spikes import LEAST_LOSS, SpikeWatch
from backend.learner.value_head import ValueHead
from tinkergym.errors import ConflictError, NotFoundError
from tinkergym.schema.optimizer import OptimizerStep


@dataclass(slots=True)
class TrainingState:
    """A policy and its training state."""

    policy: LoraPolicy | FullPolicy
    optimizer: PolicyOptimizer
    value_head: ValueHead | None = None
    pending: bool = False
    """Whether there is an accumulated gradient."""
    losses: SpikeWatch = field(default_factory=SpikeWatch)
    grad_norms: SpikeWatch = field(default_factory=SpikeWatch)

    def forget_gradient(self) -> None:
        """Discard the accumulated gradient."""
        self.optimizer.clear()
        self.pending = False

    def watched(self, result: ForwardBackwardResult) -> ForwardBackwardResult:
        """Return the result of a batch with a metric for a loss that is a spike."""
        result.metrics.update(self.losses.observe(result.loss, name="loss_spike", least=LEAST_LOSS))
        return result

    def step(self, settings: OptimizerStep) -> OptimStepResult:
        """Apply the accumulated gradient and clear it; see `PolicyOptimizer.step`."""
        # Before the step, which clears the gradient even when it refuses it.
        self.pending = False
        stepped = self.optimizer.step(**settings)
        if not stepped.skipped:
            self.policy.updated()
            # Not after zeros, which would make any later gradient a spike.
            stepped.metrics.update(self.grad_norms.observe(stepped.grad_norm, name="grad_norm_spike"))
        return stepped


class TrainingStates(dict[str, TrainingState]):
    """By policy id, oldest first."""

    def __missing__(self, policy_id: str) -> TrainingState:
        raise NotFoundError(f"the learner has no policy {policy_id}", hint="create or load it first")

    def require_new(self, policy_id: str) -> None:
        """Raise ConflictError if there is such a policy."""
        if policy_id in self:
            raise ConflictError(
                f"the learner already has a policy {policy_id}", hint="drop it first", code="exists"
            )

    def with_gradient(self, policy_id: str) -> TrainingState:
        """Return a policy whose gradient waits for a step, or raise ConflictError."""
        state = self[policy_id]
        if not state.pending:
            raise ConflictError(
                f"policy {policy_id} has no gradient to apply",
                hint="call forward_backward before optim_step",
                code="no_gradient",
            )
        return state

    def without_gradient(self, policy_id: str) -> TrainingState:
        """Return a policy that a checkpoint would store completely, or raise ConflictError."""
        state = self[policy_id]
        if state.pending:
            raise ConflictError(
                f"policy {policy_id} has an accumulated gradient, which a checkpoint would lose",
                hint="call optim_step first",
                code="gradient_pending",
            )
        return state

    def value_head(self, policy_id: str) -> ValueHead:
        """Return a policy's value head, or raise ConflictError."""
        head = self[policy_id].value_head
        if head is None:
            raise ConflictError(
                f"policy {policy_id} has no value head",
                hint="create or load it with value_head=True",
                code="no_value_head",
            )
        return head
