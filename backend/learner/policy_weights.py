"""Policies: whose weights are trained. Either an adapter on the shared base model, or a separate model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from backend.compute.weights import AdapterWeights, FullWeights, PolicyWeights, weights_sha256
from backend.learner.adapters import AdapterSet
from backend.learner.causal_lm import CausalLM
from backend.learner.parallel.divided import is_divided, on_cpu
from tinkergym.schema.jobs.parts import FullParameters, LoRA


class Policy(ABC):
    """The learner's interface to a policy. Callers hold the device's lock while computing."""

    lm: CausalLM
    adapter: LoRA | FullParameters
    parameters: Mapping[str, nn.Parameter]
    """The trained parameters, by the names under which they are saved."""

    def prepare(self) -> None:  # noqa: B027 - not every policy needs to
        """Prepare forward passes with the current weights."""

    def release(self) -> None:  # noqa: B027
        """Free what forward passes created besides their results."""

    @property
    def computed(self) -> list[torch.Tensor]:
        """The tensors with which `lm` computes, one per parameter; their gradients are the parameters'."""
        return list(self.parameters.values())

    def updated(self) -> None:  # noqa: B027
        """Record that the parameters have changed."""

    @abstractmethod
    def using(self) -> AbstractContextManager[None]:
        """Return a context in which `lm` computes with this policy's weights."""

    def turns(self, own: int) -> int:
        """Return the number of turns in a pass in which this learner has `own` micro-batches.

        It is larger if other ranks, which compute with parts of the same weights, have more.
        """
        return own

    def idle(self, *, gradient: bool) -> None:  # noqa: B027
        """Take a turn without a micro-batch."""

    @abstractmethod
    def weights(self) -> PolicyWeights:
        """Return a copy of the weights, on the CPU."""

    def sha256(self) -> str:
        """Return the hash of the weights; see `weights_sha256`."""
        return weights_sha256(self.weights())

    def drop(self) -> None:  # noqa: B027
        """Free the weights."""


class LoraPolicy(Policy):
    """An adapter on the shared base model."""

    def __init__(self, lm: CausalLM, adapters: AdapterSet, name: str, adapter: LoRA, *, seed: int) -> None:
        self.lm = lm
        self.adapter: LoRA = adapter
        self._adapters = adapters
        self._name = name
        self._lora = adapter
        self.parameters: Mapping[str, nn.Parameter] = adapters.add(name, adapter, seed=seed)

    def prepare(self) -> None:
        """Merge the adapter into a copy of the base model's weights."""
        self._adapters.prepare(self._name)

    def release(self) -> None:
        """Free that copy."""
        self._adapters.release(self._name)

    @contextmanager
    def using(self) -> Iterator[None]:
        """Enable this adapter."""
        with self._adapters.using(self._name), self.lm.tower_at_rest(not self.adapter.vision):
            yield

    def weights(self) -> PolicyWeights:
        """Return a copy of the adapter."""
        lora = self._lora
        return AdapterWeights(
            rank=lora.rank, alpha=lora.alpha, rslora=lora.rslora, tensors=_copies(self.parameters)
        )

    def drop(self) -> None:
        """Remove the adapter from the base model."""
        self._adapters.remove(self._name)

    def peft_config(self, *, base_model: str) -> dict[str, Any]:
        """Return the contents of `adapter_config.json`, in the same order on every machine."""
        return self._adapters.saved_config(self._name) | {"base_model_name_or_path": base_model}


class FullPolicy(Policy):
    """A separate model, with all parameters trained."""

    def __init__(self, lm: CausalLM, adapter: FullParameters) -> None:
        self.lm = lm
        self.adapter: LoRA | FullParameters = adapter
        lm.model.requires_grad_(True)
        self.parameters: Mapping[str, nn.Parameter] = dict(lm.model.named_parameters())
        _move_out_of_files(self.parameters)

    @contextmanager
    def using(self) -> Iterator[None]:
        """Do nothing: the model has one set of weights."""
        yield

    def weights(self) -> PolicyWeights:
        """Return a copy of every parameter, tied ones under each of their names."""
        return FullWeights(tensors=_copies(dict(self.lm.model.named_parameters(remove_duplicate=False))))

    def save_pretrained(self, directory: Path, weights: PolicyWeights) -> None:
        """Write the model in transformers' format; `weights` are the current ones."""
        model = self.lm.model
        first_name = {id(parameter): name for name, parameter in model.named_parameters()}
        # Tied ones must be one tensor, as in the model: transformers then writes it once.
        tensors = {
            name: weights.tensors[first_name[id(parameter)]]
            for name, parameter in model.named_parameters(remove_duplicate=False)
        }
        # In one file, however large, because the checkpoint's manifest names one.
        # transformers knows how each family is stored: tied and fused weights, and the matching config.
        model.save_pretrained(directory, state_dict=model.state_dict() | tensors, max_shard_size="1000GB")


class MasteredPolicy(FullPolicy):
    """A separate model that computes in a half-precision type and trains a float32 copy of its weights.

    An update is often smaller than the last digit of a half-precision weight, and would be lost there.
    """

    def __init__(self, lm: CausalLM, adapter: FullParameters, masters: Mapping[str, torch.Tensor]) -> None:
        """Create the policy.

        Args:
            lm: The model, in half precision.
            adapter: Full parameters.
            masters: Its parameters in float32, by name; they are not copied.
        """
        super().__init__(lm, adapter)
        self._computed = self.parameters
        self.parameters = {name: nn.Parameter(masters[name]) for name in self._computed}

    @property
    def computed(self) -> list[torch.Tensor]:
        """The half-precision weights."""
        return list(self._computed.values())

    def updated(self) -> None:
        """Round the parameters to the weights."""
        with torch.no_grad():
            for name, weight in self._computed.items():
                weight.copy_(self.parameters[name])

    def weights(self) -> PolicyWeights:
        """Return a copy of every parameter in float32, tied ones under each of their names."""
        names = {id(weight): name for name, weight in self._computed.items()}
        every = self.lm.model.named_parameters(remove_duplicate=False)
        return FullWeights(
            tensors=_copies({name: self.parameters[names[id(weight)]] for name, weight in every})
        )


def restore(policy: Policy, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy saved weights, whose names and shapes were checked before, into the policy."""
    with torch.no_grad():
        for name, parameter in policy.parameters.items():
            parameter.copy_(tensors[name])


def _move_out_of_files(parameters: Mapping[str, nn.Parameter]) -> None:
    """Copy trained parameters out of the file that transformers maps into memory.

    A tensor's offset in a file depends on the file's header, and on a CPU the last bit of a matrix product
    depends on its operand's alignment: a policy loaded from a checkpoint would train to different bits than
    the saved one.
    """
    for parameter in parameters.values():
        if parameter.device.type == "cpu" and not is_divided(parameter):
            parameter.data = parameter.data.clone()


def _copies(parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    made: dict[int, torch.Tensor] = {}
    for parameter in parameters.values():  # tied ones are copied once
        if id(parameter) not in made:
            made[id(parameter)] = on_cpu(parameter, copy=True).contiguous()
    return {name: made[id(parameter)] for name, parameter in parameters.items()}
