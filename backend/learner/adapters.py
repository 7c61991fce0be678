"""Many named LoRA adapters on one frozen base model, with an efficient forward pass.

PEFT inserts the adapters, names them and owns their parameters. The forward pass of plain linear layers is
our own: the adapter is merged into a copy of the weight, which needs one matrix product instead of three, and
the adapter's gradients are computed directly. Other kinds of layers use PEFT's forward pass.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import peft
import torch
from peft.tuners.lora.layer import Linear as PeftLinear
from torch import nn

from backend.compute.cpu.fast_linears import gradient_product, linear
from backend.learner.adapted_layers import adapted_layers, chosen_layers, vision_layers
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.parts import LoRA


@dataclass(slots=True)
class AdaptedLinear:
    """A plain linear layer with one adapter."""

    lora_a: nn.Parameter
    """[rank, in]"""
    lora_b: nn.Parameter
    """[out, rank]"""
    scaling: float
    merged: torch.Tensor | None = None
    """[out, in], weight + scaling * B @ A; only present while the adapter is in use."""


class AdapterSet:
    """All LoRA adapters of one base model.

    Not thread-safe: the adapter in use is a state of the model, so callers hold the device's lock.
    """

    def __init__(self, model: Any, *, merge: bool) -> None:
        self._model = model
        self._merge = merge
        self._adaptable: list[str] = []
        self._seeing: list[str] = []
        self._peft: Any = None
        self._active: dict[str, AdaptedLinear] | None = None
        self._adapters: dict[str, dict[str, AdaptedLinear]] = {}
        self._bases: dict[str, nn.Linear] = {}
        self._parameters: dict[str, list[nn.Parameter]] = {}
        self._all_plain = False

    def add(self, name: str, adapter: LoRA, *, seed: int) -> dict[str, nn.Parameter]:
        """Add a new adapter to the `adapted_layers` it selects; it has no effect until trained.

        Args:
            name: Its name, without dots, because it becomes part of module names.
            adapter: Rank, alpha and layers.
            seed: Seed for A, which is drawn like in PEFT (Kaiming uniform, a = sqrt 5) from a separate
                generator; B is 0.

        Returns:
            The adapter's parameters, float32, under PEFT's names for saved adapters.

        Raises:
            InvalidRequestError: PEFT does not support the model's type, or the model lacks a layer that the
                adapter names.
        """
        # Read from the model as it was loaded: PEFT wraps the layers that it adapts.
        self._adaptable = self._adaptable or adapted_layers(self._model)
        self._seeing = self._seeing or vision_layers(self._model)
        if adapter.vision and not self._seeing:
            raise InvalidRequestError(
                f"models of type {self._model.config.model_type!r} have no vision tower to adapt",
                hint="leave out LoRA(vision=True)",
                field="adapter.vision",
            )
        config = peft.LoraConfig(
            r=adapter.rank,
            lora_alpha=adapter.alpha,
            lora_dropout=0.0,  # dropout would make the learner's logprobs differ from the engine's
            bias="none",
            use_rslora=adapter.rslora,
            target_modules=chosen_layers(
                [*self._adaptable, *(self._seeing if adapter.vision else ())], adapter.target_modules
            ),
            task_type="CAUSAL_LM",
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "fan_in_fan_out")  # PEFT corrects what it warns about
            self._put_on(name, config)
        self._patch()

        generator = torch.Generator().manual_seed(seed % 2**63)
        parameters: dict[str, nn.Parameter] = {}
        layers = [(path, layer) for path, layer in self._layers() if name in layer.lora_A]
        for module_name, layer in layers:
            a, b = layer.lora_A[name].weight, layer.lora_B[name].weight
            with torch.no_grad():
                # What Kaiming uniform with a = sqrt 5 amounts to. Drawn here, since torch's `init` uses the
                # global generator of this process, which other policies share.
                bound = 1.0 / math.sqrt(a.shape[1])
                drawn = torch.rand(a.shape, generator=generator, dtype=torch.float32) * (2 * bound) - bound
                a.copy_(drawn)
                b.zero_()
            parameters[f"{module_name}.lora_A.weight"] = a
            parameters[f"{module_name}.lora_B.weight"] = b
        self._adapters[name] = {
            module_name: AdaptedLinear(
                layer.lora_A[name].weight, layer.lora_B[name].weight, layer.scaling[name]
            )
            for module_name, layer in layers
            if module_name in self._bases
        }
        self._parameters[name] = list(parameters.values())
        self._choose_trainable()
        return parameters

    def saved_config(self, name: str) -> dict[str, Any]:
        """Return PEFT's configuration of the adapter, without sets, whose order changes between runs."""
        config = self._peft.peft_config[name].to_dict() | {"inference_mode": True}
        return {
            key: sorted(value) if isinstance(value, set | list) else value for key, value in config.items()
        }

    def remove(self, name: str) -> None:
        """Remove an adapter and free its memory."""
        del self._adapters[name], self._parameters[name]
        with warnings.catch_warnings():
            # Which adapter PEFT calls active does not matter: `using` chooses.
            warnings.filterwarnings("ignore", "Adapter .* was active")
            self._peft.delete_adapter(name)
        self._choose_trainable()

    @contextmanager
    def using(self, name: str | None) -> Iterator[None]:
        """Run the model with this adapter, or None for the base model only."""
        if not self._all_plain and self._peft is not None:
            # Layers computed by PEFT depend on PEFT's own switch.
            if name is None:
                self._peft.base_model.disable_adapter_layers()
            else:
                self._peft.base_model.enable_adapter_layers()
                self._peft.set_adapter(name)
            self._choose_trainable()
        self._active = None if name is None else self._adapters[name]
        try:
            yield
        finally:
            self._active = None

    def prepare(self, name: str) -> None:
        """Merge the adapter's current weights; call this after each change and before `using`."""
        for module_name, adapted in self._adapters[name].items():
            weight = self._bases[module_name].weight
            if self._merge:
                with torch.no_grad():
                    adapted.merged = torch.addmm(
                        weight, adapted.lora_b, adapted.lora_a, alpha=adapted.scaling
                    )

    def release(self, name: str) -> None:
        """Free what `prepare` created."""
        for adapted in self._adapters.get(name, {}).values():
            adapted.merged = None

    def _put_on(self, name: str, config: peft.LoraConfig) -> None:
        if self._peft is not None:
            self._peft.add_adapter(name, config)
            return
        try:
            self._peft = peft.get_peft_model(self._model, config, adapter_name=name)
        except ValueError as error:
            # It stopped midway, and others use the model too.
            for path, module in list(self._model.named_modules()):
                if isinstance(module, peft.tuners.lora.LoraLayer):
                    self._model.set_submodule(path, module.get_base_layer())
            raise InvalidRequestError(
                f"PEFT does not support LoRA adapters for models of type "
                f"{self._model.config.model_type!r}: {error}",
                hint="train all parameters (adapter=tg.FullParameters()), or use another model",
                field="adapter",
            ) from error

    def _choose_trainable(self) -> None:
        """Freeze only the base model: PEFT lets only the last added adapter train."""
        self._model.requires_grad_(False)
        for parameters in self._parameters.values():
            for parameter in parameters:
                parameter.requires_grad_(True)

    def _layers(self) -> list[tuple[str, Any]]:
        return [(n, m) for n, m in self._peft.named_modules() if isinstance(m, peft.tuners.lora.LoraLayer)]

    def _patch(self) -> None:
        """Replace the forward pass of plain linear layers, each once."""
        if not self._merge:
            return
        layers = self._layers()
        for name, layer in layers:
            is_plain = type(layer) is PeftLinear and type(layer.base_layer) is nn.Linear
            if is_plain and name not in self._bases:
                layer.forward = self._forward_of(name, layer.base_layer)
                self._bases[name] = layer.base_layer
        self._all_plain = len(self._bases) == len(layers)

    def _forward_of(self, name: str, base: nn.Linear) -> Any:
        def forward(x: torch.Tensor) -> torch.Tensor:
            adapted = None if self._active is None else self._active.get(name)
            if adapted is None:  # no adapter is in use, or not on this layer
                return base(x)  # type: ignore[no-any-return]
            if adapted.merged is None:
                raise AssertionError("prepare() was not called")
            # As rows, like `compute.cpu.fast_linears`: a layer's output may be modified in place.
            rows = x.reshape(-1, x.shape[-1])
            out: torch.Tensor = _MergedLinear.apply(  # type: ignore[no-untyped-call]
                rows, adapted.merged, base.bias, adapted.lora_a, adapted.lora_b, adapted.scaling
            )
            return out.view(*x.shape[:-1], out.shape[-1])

        return forward


class _MergedLinear(torch.autograd.Function):
    """`x @ merged.T + bias`, with the gradients of the two factors inside `merged`."""

    @staticmethod
    def forward(  # noqa: PLR0917 - autograd functions take no keywords
        ctx: Any,
        x: torch.Tensor,
        merged: torch.Tensor,
        bias: torch.Tensor | None,
        lora_a: torch.Tensor,
        lora_b: torch.Tensor,
        scaling: float,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, merged, lora_a, lora_b)
        ctx.scaling = scaling
        return linear(x, merged, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, merged, lora_a, lora_b = ctx.saved_tensors
        out_gradient = gradients[0].reshape(-1, merged.shape[0])  # [tokens, out]
        flat = x.reshape(-1, merged.shape[1])  # [tokens, in]
        into_x = gradient_product(out_gradient, merged.t()).view(x.shape) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[3]:
            return into_x, None, None, None, None, None
        # Everything as [rank, n]: on a CPU these thin products are 2 to 6 times as fast as their transposes.
        thin_gradient = lora_b.T.contiguous() @ out_gradient.T  # [rank, tokens]
        thin_input = lora_a @ flat.T  # [rank, tokens]
        into_a = (thin_gradient @ flat).mul_(ctx.scaling)  # [rank, in]
        into_b = (thin_input @ out_gradient).mul_(ctx.scaling).T.contiguous()
        return into_x, None, None, into_a, into_b, None
