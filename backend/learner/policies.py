"""Policies: whose weights are trained. An adapter beside the shared base, or a whole model of its own."""

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
from backend.learner.divided import is_divided, on_cpu
from tinkergym.schema.job_spec import FullParameters, LoRA


class Policy(ABC):
    """What the learner needs of one. Callers hold the device's lock around everything that computes."""

    lm: CausalLM
    adapter: LoRA | FullParameters
    parameters: Mapping[str, nn.Parameter]
    """What is trained, by the names they are saved under."""

    def prepare(self) -> None:  # noqa: B027 - not every policy needs to
        """Get ready for forward passes with the present weights."""

    def release(self) -> None:  # noqa: B027
        """Free what forward passes made beside their results."""

    @property
    def computed(self) -> list[torch.Tensor]:
        """What `lm` computes with for each parameter; a gradient with respect to it is the parameter's."""
        return list(self.parameters.values())

    def updated(self) -> None:  # noqa: B027
        """Take notice that the parameters have changed."""

    @abstractmethod
    def using(self) -> AbstractContextManager[None]:
        """Return a context in which `lm` computes with this policy's weights."""

    def turns(self, own: int) -> int:
        """Return how many turns a pass takes in which this learner has `own` micro-batches to compute.

        More than that if others compute with parts of the same weights and have more.
        """
        return own

    def idle(self, *, gradient: bool) -> None:  # noqa: B027
        """Take a turn without a micro-batch of one's own."""

    @abstractmethod
    def weights(self) -> PolicyWeights:
        """Return a copy of the weights, on the CPU."""

    def sha256(self) -> str:
        """Return the hash of the weights; see `weights_sha256`."""
        return weights_sha256(self.weights())

    def drop(self) -> None:  # noqa: B027
        """Free the weights."""


class LoraPolicy(Policy):
    """An adapter on the base model that all policies share."""

    def __init__(self, lm: CausalLM, adapters: AdapterSet, name: str, adapter: LoRA, *, seed: int) -> None:
        self.lm = lm
        self.adapter: LoRA = adapter
        self._adapters = adapters
        self._name = name
        self._lora = adapter
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
        with self._adapters.using(self._name), self.lm.tower_at_rest(not self.adapter.vision):
            yield

    def weights(self) -> PolicyWeights:
        """Return a copy of the adapter."""
        lora = self._lora
        return AdapterWeights(
            rank=lora.rank, alpha=lora.alpha, rslora=lora.rslora, tensors=_copies(self.parameters)
        )

    def drop(self) -> None:
        """Take the adapter off the base model."""
        self._adapters.remove(self._name)

    def peft_config(self, *, base_model: str) -> dict[str, Any]:
        """Return what `adapter_config.json` says, in one order on every machine."""
        return self._adapters.saved_config(self._name) | {"base_model_name_or_path": base_model}


class FullPolicy(Policy):
    """A model of its own, trained whole."""

    def __init__(self, lm: CausalLM, adapter: FullParameters) -> None:
        self.lm = lm
        self.adapter: LoRA | FullParameters = adapter
        lm.model.requires_grad_(True)
        self.parameters: Mapping[str, nn.Parameter] = dict(lm.model.named_parameters())
        _move_out_of_files(self.parameters)

    @contextmanager
    def using(self) -> Iterator[None]:
        """Nothing to switch: the model has one set of weights."""
        yield

    def weights(self) -> PolicyWeights:
        """Return a copy of every parameter, tied ones under each of their names."""
        return FullWeights(tensors=_copies(dict(self.lm.model.named_parameters(remove_duplicate=False))))

    def save_pretrained(self, directory: Path, weights: PolicyWeights) -> None:
        """Write the model in transformers' format; `weights` are the present ones."""
        model = self.lm.model
        first_name = {id(parameter): name for name, parameter in model.named_parameters()}
        # Tied ones shall be one tensor, as in the model: transformers then writes it once.
        tensors = {
            name: weights.tensors[first_name[id(parameter)]]
            for name, parameter in model.named_parameters(remove_duplicate=False)
        }
        # transformers knows how each family is stored: tied and fused weights, and a config to match.
        model.save_pretrained(directory, state_dict=model.state_dict() | tensors, max_shard_size="1000GB")


class MasteredPolicy(FullPolicy):
    """A model of its own that computes in a short type; what is trained is a float32 copy of its weights.

    An update is often smaller than the last digit of a weight in a short type: there it would be lost.
    """

    def __init__(self, lm: CausalLM, adapter: FullParameters, masters: Mapping[str, torch.Tensor]) -> None:
        """Begin.

        Args:
            lm: The model, in the short type.
            adapter: What is trained: all of it.
            masters: Its parameters in float32, by name; they are not copied.
        """
        super().__init__(lm, adapter)
        self._computed = self.parameters
        self.parameters = {name: nn.Parameter(masters[name]) for name in self._computed}

    @property
    def computed(self) -> list[torch.Tensor]:
        """The weights in the short type."""
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
        if parameter.device.type == "cpu" and not is_divided(parameter):
            parameter.data = parameter.data.clone()


def _copies(parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    made: dict[int, torch.Tensor] = {}
    for parameter in parameters.values():  # tied ones are copied once
        if id(parameter) not in made:
            made[id(parameter)] = on_cpu(parameter, copy=True).contiguous()
    return {name: made[id(parameter)] for name, parameter in parameters.items()}
