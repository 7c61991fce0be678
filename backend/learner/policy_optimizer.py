"""A policy's AdamW: its state, clipping, and the check that keeps bad gradients away from the weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import nn

from backend.learner.adamw import stepper
from backend.learner.parallel.divided import whole
from backend.learner.pass_results import OptimStepResult
from tinkergym.errors import ConflictError, NonFiniteLossError
from tinkergym.schema.optimizer import MAX_GRAD_NORM, WEIGHT_DECAY, AdamW

DEFAULT = AdamW()


class PolicyOptimizer:
    """AdamW (arXiv:1711.05101) with decoupled weight decay.

    Each step receives its learning rate and decay, so schedules are computed by the caller and not stored
    here. A value head is a separate group with its own learning rate, no decay and separate clipping, so a
    bad value does not reduce the policy's update.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        value_parameters: Mapping[str, nn.Parameter] | None = None,
        settings: AdamW = DEFAULT,
    ) -> None:
        """Start without moments.

        Args:
            parameters: The policy's parameters.
            value_parameters: Its value head's parameters, if it has one.
            settings: Betas, eps and the moments' size, for both.

        Raises:
            MissingExtraError: The settings need a package that is not installed.
        """
        self._groups = [dict(group) for group in (parameters, value_parameters) if group]
        self._parameters = {name: p for group in self._groups for name, p in group.items()}
        self._adamw = stepper(self._groups, settings)
        self.steps = 0

    def step(
        self,
        *,
        learning_rate: float,
        max_grad_norm: float = MAX_GRAD_NORM,
        weight_decay: float = WEIGHT_DECAY,
        value_learning_rate: float | None = None,
        skip_zero_gradient: bool = True,
    ) -> OptimStepResult:
        """Clip the accumulated gradient, apply it and clear it; see `OptimizerStep`.

        Raises:
            NonFiniteLossError: A gradient is NaN or infinite. Weights and state are unchanged; the
                gradient is cleared.
        """
        by_name = self.gradient()
        gradients = [[by_name[name] for name in group] for group in self._groups]
        norms = [whole(torch.nn.utils.get_total_norm(group)) for group in gradients]
        if not all(torch.isfinite(norm) for norm in norms):
            sizes = {name: whole(torch.linalg.vector_norm(gradient)) for name, gradient in by_name.items()}
            bad = [name for name, size in sizes.items() if not torch.isfinite(size)]
            self.clear()
            raise NonFiniteLossError(
                f"the gradient of {len(bad)} of {len(self._parameters)} tensors is NaN or infinite "
                f"(first: {bad[0] if bad else 'their norm overflows'}); the weights were not changed",
                hint="lower learning_rate, and check for extreme rewards or importance ratios",
            )
        found = [float(norm) for norm in norms]
        # Even without a gradient, AdamW would move the weights by its momentum and its decay.
        skipped = skip_zero_gradient and not any(found) and _is_zero(by_name.values())
        if not skipped:
            for group, group_norm in zip(gradients, found, strict=True):
                if group_norm > max_grad_norm:
                    # The 1e-6 is that of torch's `clip_grad_norm_`.
                    torch._foreach_mul_(group, max_grad_norm / (group_norm + 1e-6))
            self._set_rates(learning_rate, weight_decay, value_learning_rate)
            self._adamw.step()
            self.steps += 1
        self.clear()
        metrics = {"grad_norm": found[0], "learning_rate": learning_rate}
        if len(found) > 1:
            metrics["value_grad_norm"] = found[1]
        return OptimStepResult(
            grad_norm=found[0],
            learning_rate=learning_rate,
            optimizer_step=self.steps,
            skipped=skipped,
            metrics=metrics,
        )

    def _set_rates(
        self, learning_rate: float, weight_decay: float, value_learning_rate: float | None
    ) -> None:
        policy_group, *value_groups = self._adamw.groups
        policy_group["lr"], policy_group["weight_decay"] = learning_rate, weight_decay
        for value_group in value_groups:
            value_group["lr"] = learning_rate if value_learning_rate is None else value_learning_rate

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All trained parameters, the value head's last."""
        return list(self._parameters.values())

    def gradient(self) -> dict[str, torch.Tensor]:
        """Return the accumulated gradient by parameter, zeros if there is none; not copies."""
        for parameter in self._parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return {name: p.grad for name, p in self._parameters.items() if p.grad is not None}

    def clear(self) -> None:
        """Clear the accumulated gradient."""
        self._adamw.clear()

    def state(self) -> dict[str, torch.Tensor]:
        """Return the moments as `<moment>.<parameter>`, `exp_avg` and `exp_avg_sq`; initially empty."""
        return self._adamw.state()

    def restore(self, state: Mapping[str, torch.Tensor], *, steps: int) -> None:
        """Load what `state` returned after `steps` steps.

        Raises:
            ConflictError: It belongs to different parameters, or its moments have a different size.
        """
        if not self._adamw.fits(set(state), steps=steps):
            raise ConflictError(
                "the saved optimizer state belongs to different parameters, or has a different state_bits",
                hint="load it without the optimizer, or with the optimizer= it was saved with",
                code="other_parameters",
                field="optimizer",
            )
        self.steps = steps
        if steps:
            self._adamw.restore(state, steps=steps)


def _is_zero(gradients: Iterable[torch.Tensor]) -> bool:
    """Return whether every element is 0; an L2 norm of 0 does not prove it, because squares underflow."""
    return not any(bool(whole(torch.linalg.vector_norm(own, ord=torch.inf))) for own in gradients)
