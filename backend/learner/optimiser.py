"""One policy's AdamW: its state, clipping, and the check that no bad gradient reaches the weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from backend.learner.adamw import stepper
from backend.learner.divided import whole
from tinkergym.errors import ConflictError, NonFiniteGradientError
from tinkergym.schema.optimizer import AdamW

DEFAULT = AdamW()


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimStepResult:
    """What an optimiser step did."""

    grad_norm: float
    """L2 over all parameters but a value head's, before clipping."""
    learning_rate: float
    optimizer_step: int
    """1 after the first; a skipped step does not count."""
    skipped: bool
    """Whether the gradient was exactly zero, and weights and moments were left as they were."""
    metrics: dict[str, float]
    """The numbers for the job's log: grad_norm, learning_rate, with a value head value_grad_norm, and
    grad_norm_spike in a step that has one."""


class PolicyOptimiser:
    """AdamW (arXiv:1711.05101) with decoupled weight decay.

    Learning rate and decay come with every step, so a schedule is the caller's arithmetic and not a state
    here. A value head is a group of its own: another learning rate, no decay, and a gradient that is clipped
    by itself, so that a value far off does not take the policy's update away.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        value_parameters: Mapping[str, nn.Parameter] | None = None,
        settings: AdamW = DEFAULT,
    ) -> None:
        """Begin without moments.

        Args:
            parameters: Of the policy.
            value_parameters: Of its value head, if it has one.
            settings: Betas, eps and the moments' size, of both.

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
        max_grad_norm: float,
        weight_decay: float,
        value_learning_rate: float | None = None,
        skip_zero_gradient: bool = True,
    ) -> OptimStepResult:
        """Clip the accumulated gradient to `max_grad_norm`, apply it and clear it.

        Args:
            learning_rate: Of the policy's weights.
            max_grad_norm: Of the policy's gradient, and of the value head's.
            weight_decay: Of the policy's weights.
            value_learning_rate: Of the value head, if there is one; None is `learning_rate`.
            skip_zero_gradient: Leave everything as it is if the gradient, the value head's included, is
                exactly zero. AdamW would move the weights by its momentum and decay, with nothing learned.

        Raises:
            NonFiniteGradientError: A gradient is NaN or infinite. Weights and state are as before; the
                gradient is cleared.
        """
        by_name = self.gradient()
        gradients = [[by_name[name] for name in group] for group in self._groups]
        norms = [whole(torch.nn.utils.get_total_norm(group)) for group in gradients]
        if not all(torch.isfinite(norm) for norm in norms):
            sizes = {name: whole(torch.linalg.vector_norm(gradient)) for name, gradient in by_name.items()}
            bad = [name for name, size in sizes.items() if not torch.isfinite(size)]
            self.clear()
            raise NonFiniteGradientError(
                f"the gradient of {len(bad)} of {len(self._parameters)} tensors is NaN or infinite "
                f"(first: {bad[0] if bad else 'their norm overflows'}); the weights were left as they are",
                hint="lower learning_rate, and look for extreme rewards or importance ratios",
            )
        found = [float(norm) for norm in norms]
        skipped = skip_zero_gradient and not any(found) and _is_zero(by_name.values())
        if not skipped:
            for group, group_norm in zip(gradients, found, strict=True):
                if group_norm > max_grad_norm:
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
        """Everything that is trained, the value head's last."""
        return list(self._parameters.values())

    def gradient(self) -> dict[str, torch.Tensor]:
        """Return the accumulated gradient by parameter, zeros where there is none; not copies."""
        for parameter in self._parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return {name: p.grad for name, p in self._parameters.items() if p.grad is not None}

    def clear(self) -> None:
        """Forget the accumulated gradient."""
        self._adamw.clear()

    def state(self) -> dict[str, torch.Tensor]:
        """Return the moments as `<moment>.<parameter>`, `exp_avg` and `exp_avg_sq`; at first empty."""
        return self._adamw.state()

    def restore(self, state: Mapping[str, torch.Tensor], *, steps: int) -> None:
        """Take over what `state` returned after `steps` steps.

        Raises:
            ConflictError: It belongs to other parameters, or has moments of other bits.
        """
        if not self._adamw.fits(set(state), steps=steps):
            raise ConflictError(
                "the saved optimizer state belongs to other parameters than this policy's, or has another "
                "state_bits",
                hint="load it without the optimizer, or with the optimizer= that it was saved with",
                field="optimizer",
            )
        self.steps = steps
        if steps:
            self._adamw.restore(state, steps=steps)


def _is_zero(gradients: Iterable[torch.Tensor]) -> bool:
    """Whether every number is 0; an L2 norm of 0 does not say so, as squares underflow."""
    return not any(bool(whole(torch.linalg.vector_norm(own, ord=torch.inf))) for own in gradients)
