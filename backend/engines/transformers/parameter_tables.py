"""Tables of tensors for the model's parameters: the base model's, and those of policies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from backend.compute.quantized_weights import is_quantized
from backend.compute.weights import AdapterWeights, FullWeights
from backend.engines.transformers.adapter_site import AdapterSite
from tinkergym.errors import InvalidRequestError

_PEFT_PREFIX = "base_model.model."

Table = list[Tensor]
Factors = Mapping[str, tuple[Tensor, Tensor]]
"""[in, rank] and [rank, out] by the linear layer's path, with the scaling in the second."""


class ParameterTables:
    """Every table has a tensor for each parameter, in one order, and one table is bound to the model."""

    def __init__(self, model: nn.Module, sites: Mapping[str, AdapterSite]) -> None:
        """Take over the model's parameters; `sites` are its linear layers, by path."""
        self._sites = sites
        self._names: list[str] = []
        self._places: list[tuple[dict[str, Any], str]] = []
        self.base: Table = []
        for path, module in model.named_modules():
            for key, parameter in module._parameters.items():
                if parameter is not None and not (key == "weight" and is_quantized(module)):
                    self._names.append(f"{path}.{key}" if path else key)
                    self._places.append((module._parameters, key))
                    self.base.append(parameter.detach())
        self._index = {name: index for index, name in enumerate(self._names)}
        uses = Counter(tensor.data_ptr() for tensor in self.base)
        self._own_linears = {
            name
            for name in (f"{path}.weight" for path, site in sites.items() if not site.transposed)
            if name in self._index and uses[self.base[self._index[name]].data_ptr()] == 1
        }
        """Linear layers' weights that are not shared, for example with an embedding."""
        self.bound: Table | None = None

    def bind(self, table: Table) -> None:
        """Let the model compute with a table; this copies nothing."""
        if table is self.bound:
            return
        for (parameters, key), tensor in zip(self._places, table, strict=True):
            parameters[key] = tensor
        self.bound = table

    def merged(self, factors: Factors, spare: Table | None) -> Table:
        """Return an adapter's table; merged weights reuse the memory of `spare`, a table like it."""
        table = list(self.base)
        for path, (down, up) in factors.items():
            index = self._index[f"{path}.weight"]
            weight = table[index]
            room = None if spare is None or spare[index] is weight else spare[index]
            if self._sites[path].transposed:
                table[index] = torch.addmm(weight, down, up, out=room)  # [in, out]
            else:
                # Its columns are contiguous in memory, see `_by_columns`.
                room = None if room is None else room.t()
                table[index] = torch.addmm(weight.t(), down, up, out=room).t()  # [out, in]
        return table

    def factors(self, weights: AdapterWeights) -> dict[str, tuple[Tensor, Tensor]]:
        """Return an adapter's factors by layer, as `LoadedPolicy.factors`.

        Raises:
            InvalidRequestError: They do not fit the model, or overflow its number format.
        """
        pairs: dict[str, dict[str, Tensor]] = {}
        for name, tensor in weights.tensors.items():
            path, _, which = name.removeprefix(_PEFT_PREFIX).rpartition(".lora_")
            if path not in self._sites or which not in {"A.weight", "B.weight"}:
                raise InvalidRequestError(
                    f"the adapter has a tensor {name!r}, but the model has no such linear layer",
                    hint="adapters for this engine may only contain lora_A and lora_B of the model's "
                    "linear layers",
                    code="other_model",
                )
            pairs.setdefault(path, {})[which[0]] = tensor
        factors = {}
        for path, pair in pairs.items():
            wide, high = self._sites[path].wide, self._sites[path].high
            expected = {"A": (weights.rank, wide), "B": (high, weights.rank)}
            if {which: tuple(tensor.shape) for which, tensor in pair.items()} != expected:
                raise InvalidRequestError(
                    f"the adapter's factors for {path!r} must have the shapes {expected}",
                    hint="was the adapter trained on another model?",
                )
            # A packed weight is not in the table; its layer computes in the format of the others.
            like = self.base[self._index.get(f"{path}.weight", 0)]
            down = pair["A"].detach().to(like.device, like.dtype).t().contiguous()  # [in, rank]
            up = pair["B"].detach().to(like.device, like.dtype).t() * weights.scaling  # [rank, out]
            if not bool(torch.isfinite(down).all() and torch.isfinite(up).all()):
                # It would also spoil the tokens of other adapters in the batch.
                raise InvalidRequestError(
                    f"the adapter's factors for {path!r} overflow {like.dtype}",
                    hint="the learner diverged; lower alpha or the learning rate",
                )
            factors[path] = (down, up.contiguous())
        return factors

    def full(self, weights: FullWeights) -> Table:
        """Return the table of a policy of all parameters.

        Raises:
            InvalidRequestError: A parameter is missing.
        """
        given = {name: tensor for name, tensor in weights.tensors.items() if name in self._index}
        # Tied parameters are one tensor with several names; a state dict may contain only one.
        tied = {tensor.data_ptr(): given[name] for name, tensor in self._named_base() if name in given}
        table: Table = []
        own: dict[tuple[int, torch.Size], Tensor] = {}
        for name, loaded in self._named_base():
            place = loaded.data_ptr(), loaded.shape
            if place in own:  # A tied parameter has one tensor here, too.
                table.append(own[place])
                continue
            tensor = given.get(name, tied.get(loaded.data_ptr()))
            if tensor is None or tensor.shape != loaded.shape:
                raise InvalidRequestError(
                    f"the weights lack {name!r} in the shape {tuple(loaded.shape)}",
                    hint="full weights must contain every parameter of the model under its state_dict name",
                    code="other_model",
                )
            room = _by_columns(loaded) if name in self._own_linears else torch.empty_like(loaded)
            own[place] = room.copy_(tensor.detach())
            table.append(own[place])
        return table

    def _named_base(self) -> list[tuple[str, Tensor]]:
        return list(zip(self._names, self.base, strict=True))


def _by_columns(weight: Tensor) -> Tensor:
    """Return an empty tensor like a linear layer's weight, with contiguous columns.

    On a CPU, products with few rows, as in sampling, take a third less time if the weight need not be
    rearranged. The base model's own weights are left unchanged, because they are mapped from a file.
    """
    return weight.new_empty(weight.shape[::-1]).t()
