"""Policies: whose weights are trained. An adapter beside the shared base, or a whole model of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from backend.learner.adapters import AdapterSet
from backend.learner.causal_lm import CausalLM
from backend.weights import AdapterWeights, FullWeights, PolicyWeights
from tinkergym.wire import FullParameters, LoRA


class Policy(Protocol):
    """What the learner needs of one. Callers hold the device's lock around everything that computes."""

    lm: CausalLM
    adapter: LoRA | FullParameters
    parameters: Mapping[str, nn.Parameter]
    """What is trained, by the names they are saved under."""

    def prepare(self) -> None:
        """Get ready for forward passes with the present weights."""
        ...

    def release(self) -> None:
        """Free what `prepare` made."""
        ...

    def using(self) -> Any:
        """Return a context in which `lm` computes with this policy's weights."""
        ...

    def weights(self) -> PolicyWeights:
        """Return a copy of the weights, on the CPU."""
        ...

    def drop(self) -> None:
        """Free the weights."""
        ...


class LoraPolicy:
    """An adapter on the base model that all policies share."""

    def __init__(self, lm: CausalLM, adapters: AdapterSet, name: str, adapter: LoRA, *, seed: int) -> None:
        self.lm = lm
        self.adapter: LoRA | FullParameters = adapter
        self._adapters = adapters
        self._name = name
        self._rank, self._alpha = adapter.rank, adapter.alpha
        self.parameters: Mapping[str, nn.Parameter] = adapters.add(name, adapter, seed=seed)

    def prepare(self) -> None:
        """Merge the adapter into a copy of the base's weights."""
        self._adapters.prepare(self._name)

    def release(self) -> None:
        """Free that copy."""
        self._adapters.release(self._name)

    @contextmanager
    def using(self) -> Iterator[None]:
        """Switch this adapter on."""
        with self._adapters.using(self._name):
            yield

    def weights(self) -> PolicyWeights:
        """Return a copy of the adapter."""
        return AdapterWeights(rank=self._rank, alpha=self._alpha, tensors=_copies(self.parameters))

    def drop(self) -> None:
        """Take the adapter off the base model."""
        self._adapters.remove(self._name)

    def peft_config(self, *, base_model: str) -> dict[str, Any]:
        """Return what `adapter_config.json` says, in one order on every machine."""
        return self._adapters.saved_config(self._name) | {"base_model_name_or_path": base_model}


class FullPolicy:
    """A model of its own, trained whole."""

    def __init__(self, lm: CausalLM, adapter: FullParameters) -> None:
        self.lm = lm
        self.adapter: LoRA | FullParameters = adapter
        lm.model.requires_grad_(True)
        self.parameters: Mapping[str, nn.Parameter] = dict(lm.model.named_parameters())
        _move_out_of_files(self.parameters)

    def prepare(self) -> None:
        """Nothing to do."""

    def release(self) -> None:
        """Nothing to do."""

    @contextmanager
    def using(self) -> Iterator[None]:
        """Nothing to switch: the model has one set of weights."""
        yield

    def weights(self) -> PolicyWeights:
        """Return a copy of every parameter, tied ones under each of their names."""
        return FullWeights(tensors=_copies(dict(self.lm.model.named_parameters(remove_duplicate=False))))

    def drop(self) -> None:
        """Nothing but references hold the model."""


def restore(policy: Policy, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write saved weights, whose names and shapes were compared before, into the policy."""
    with torch.no_grad():
        for name, parameter in policy.parameters.items():
            parameter.copy_(tensors[name])


def _move_out_of_files(parameters: Mapping[str, nn.Parameter]) -> None:
    """Give what is trained memory of its own, in place of the file that transformers maps into memory.

    Where a tensor lies in a file depends on the file's header, and the last bit of a matrix product on a CPU
    on where its operand lies: a policy that was read back from a checkpoint would learn other bits than the
    one that was saved.
    """
    for parameter in parameters.values():
        if parameter.device.type == "cpu":
            parameter.data = parameter.data.clone()


def _copies(parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: p.detach().to("cpu", copy=True).contiguous() for name, p in parameters.items()}
