"""AdamW for a policy's weights: torch's, or bitsandbytes' with 8-bit moments.

It knows parameters and their moments by name. This is the only module that uses bitsandbytes, which is
imported only if requested.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from backend.learner.parallel.divided import is_divided, laid_out_as, on_cpu
from tinkergym.errors import MissingExtraError
from tinkergym.schema.optimizer import AdamW

Groups = Sequence[Mapping[str, nn.Parameter]]
"""Parameters by name; a group shares a learning rate and a weight decay."""


class Stepper(Protocol):
    """The interface that `PolicyOptimizer` uses."""

    groups: list[dict[str, Any]]
    """One per group of parameters; `lr` and `weight_decay` are read at each step."""

    def step(self) -> None:
        """Apply the gradients."""
        ...

    def clear(self) -> None:
        """Clear the gradients."""
        ...

    def state(self) -> dict[str, torch.Tensor]:
        """Return the moments as `<moment>.<parameter>`, on the CPU; initially empty."""
        ...

    def fits(self, names: set[str], *, steps: int) -> bool:
        """Return whether a state with these names, after this many steps, fits this kind and parameters."""
        ...

    def restore(self, state: Mapping[str, torch.Tensor], *, steps: int) -> None:
        """Load what `state` returned after `steps` steps."""
        ...


def stepper(groups: Groups, settings: AdamW) -> Stepper:
    """Return the AdamW for the settings.

    Raises:
        MissingExtraError: 8-bit moments without bitsandbytes.
    """
    return EightBitAdamW(groups, settings) if settings.state_bits == 8 else TorchAdamW(groups, settings)


class _AdamW:
    """The common part: parameters and moments by name, and torch's optimizer interface."""

    _kept: ClassVar[tuple[str, ...]]
    """State of a parameter, by the optimizer's names."""

    def __init__(self, groups: Groups, settings: AdamW, make: Callable[..., Any], **more: Any) -> None:
        self._parameters = {name: p for group in groups for name, p in group.items()}
        self._adamw = make(
            [{"params": list(group.values())} for group in groups],
            lr=0.0,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            weight_decay=0.0,
            **more,
        )
        # The optimizer's own dictionaries: a rate set there applies from the next step on.
        self.groups: list[dict[str, Any]] = self._adamw.param_groups

    def step(self) -> None:
        """Apply the gradients."""
        self._adamw.step()

    def clear(self) -> None:
        """Clear the gradients."""
        self._adamw.zero_grad(set_to_none=True)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the moments, with their scales where they have some."""
        return {
            f"{part}.{name}": on_cpu(self._adamw.state[parameter][part])
            for name, parameter in self._parameters.items()
            for part in self._kept
            if part in self._adamw.state.get(parameter, {})
        }


class TorchAdamW(_AdamW):
    """float32 moments, `exp_avg` and `exp_avg_sq`."""

    _kept = ("exp_avg", "exp_avg_sq")

    def __init__(self, groups: Groups, settings: AdamW) -> None:
        super().__init__(groups, settings, torch.optim.AdamW, fused=True)

    def fits(self, names: set[str], *, steps: int) -> bool:
        """Return whether each parameter has both moments, or none before the first step."""
        expected = {f"{m}.{n}" for n in self._parameters for m in self._kept} if steps else set()
        return names == expected

    def restore(self, state: Mapping[str, torch.Tensor], *, steps: int) -> None:
        """Load the moments."""
        for name, parameter in self._parameters.items():
            self._adamw.state[parameter] = {
                # A fused step reads it on the parameter's device.
                "step": torch.tensor(float(steps), dtype=torch.float32, device=parameter.device),
                **{m: laid_out_as(parameter, state[f"{m}.{name}"]) for m in self._kept},
            }


class EightBitAdamW(_AdamW):
    """8-bit moments in blocks with a scale (arXiv:2110.02861), by bitsandbytes.

    Tensors with fewer than 4096 elements have float32 moments and no scale, as is bitsandbytes' default.
    """

    _kept = ("state1", "absmax1", "state2", "absmax2")

    def __init__(self, groups: Groups, settings: AdamW) -> None:
        super().__init__(groups, settings, _bitsandbytes().optim.AdamW8bit)
        assert not any(is_divided(p) for p in self._parameters.values()), "refused before"

    def fits(self, names: set[str], *, steps: int) -> bool:
        """Return whether each parameter has both moments, or none before the first step."""
        moments = {name for name in names if name.startswith(("state1.", "state2."))}
        expected = {f"{m}.{n}" for n in self._parameters for m in ("state1", "state2")} if steps else set()
        return moments == expected and all(name.partition(".")[0] in self._kept for name in names)

    def restore(self, state: Mapping[str, torch.Tensor], *, steps: int) -> None:
        """Load the moments."""
        for number, group in enumerate(self.groups):
            for place, parameter in enumerate(group["params"]):
                # Creates the moments with their blocks and scales, into which the saved ones are copied
                # below.
                self._adamw.init_state(group, parameter, number, place)
        for name, parameter in self._parameters.items():
            own = self._adamw.state[parameter]
            own["step"] = steps
            for part in self._kept:
                if part in own:
                    own[part].copy_(state[f"{part}.{name}"])


def _bitsandbytes() -> Any:
    try:
        return importlib.import_module("bitsandbytes")
    except ImportError as error:
        raise MissingExtraError(
            "an optimizer with state_bits=8 needs the package bitsandbytes, which is not installed here",
            hint="install it with `pip install bitsandbytes` on the service's machine, or use state_bits=32",
            field="optimizer.state_bits",
        ) from error
