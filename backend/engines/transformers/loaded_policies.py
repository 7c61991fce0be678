"""The policies loaded in an engine, and how each is bound to the single copy of the model.

A policy is a table of tensors for the model's parameters. The base model's table contains the loaded weights;
an adapter's differs in the linear layers it adapts, which contain `W + scaling * B @ A`; a full policy's
differs everywhere. Binding a table sets references and copies nothing. If several adapters share a batch, the
base table is bound and each linear layer adds every adapter's product to that adapter's tokens.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from backend.compute.quantized_weights import is_quantized
from backend.compute.weights import AdapterWeights, FullWeights, PolicyWeights, require_finite
from backend.engines.protocol import BASE_POLICY
from tinkergym.errors import InvalidRequestError

_PEFT_PREFIX = "base_model.model."

_MOST_RANKS = 128
"""Total rank of combined adapters; beyond it, the products of foreign ranks cost more than separate calls."""


@dataclass(eq=False, slots=True)
class LoadedPolicy:
    """One version of a policy."""

    name: str
    version: int
    live: bool = True
    """False once a newer version replaced it and requests may not finish with it; it is then no longer
    sampled."""
    users: int = 0
    """Its unanswered requests."""
    factors: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """For an adapter: [in, rank] and [rank, out], with the scaling in the second, by the linear layer's
    path."""
    table: list[Tensor] | None = None
    """The model's parameters under this policy; None while an adapter is not merged."""

    @property
    def is_adapter(self) -> bool:
        """Whether this policy is the base model plus low-rank factors."""
        return bool(self.factors)


@dataclass(frozen=True, slots=True)
class AdapterSegment:
    """Which part of a packed batch belongs to a policy."""

    policy: LoadedPolicy
    tokens: slice
    rows: slice
    """The range of positions whose logits are wanted."""


_Factors = Mapping[str, tuple[Tensor, Tensor]]
_Columns = tuple[tuple[LoadedPolicy, int, int], ...]
"""The range of ranks of each combined adapter."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Combined adapters of one layer: two products for all of them, regardless of their number.

    Each token is multiplied with all ranks, so it is meant for few: see `_MOST_RANKS`.
    """

    down: Tensor
    """[in, ranks], all ranks together."""
    up: Tensor
    """[ranks, out], including the scaling."""
    foreign: Tensor
    """[tokens, ranks], True where the rank belongs to another token's adapter."""


class AdapterSite:
    """A linear layer of the model that can add several adapters' products to its output."""

    def __init__(self, module: nn.Module) -> None:
        self.transposed = isinstance(module, Conv1D)
        """GPT-2 stores its linear weights as [in, out]."""
        self.quantized = is_quantized(module)
        if isinstance(module, nn.Linear):  # whose weight may be packed
            self.wide, self.high = module.in_features, module.out_features
        else:
            self.wide, self.high = module.weight.shape  # type: ignore[misc] # a Conv1D
        self.per_row = False
        """Whether the layer only sees the positions whose logits are wanted, like an output head."""
        self.mixable = True
        """Whether the layer sees the packed tokens in order; an expert of a mixture does not."""
        self.mix: Mix | None = None
        """Combined adapters."""
        self.terms: list[tuple[slice, Tensor, Tensor]] = []
        """Adapters added one by one, each to its own part."""
        self._seen: torch.Size = torch.Size([0, 1])
        self._forward = module.forward
        module.forward = self.forward

    @property
    def seen_tokens(self) -> int:
        """Number of tokens in the last call of the layer's module."""
        return self._seen[:-1].numel()

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the layer, then each adapter to its own part."""
        outputs: Tensor = self._forward(inputs)
        self._seen = inputs.shape
        for part, down, up in self.terms:
            outputs[..., part, :] += (inputs[..., part, :] @ down) @ up
        if self.mix is not None:
            narrow = inputs.reshape(-1, inputs.shape[-1]) @ self.mix.down
            narrow.masked_fill_(self.mix.foreign, 0.0)
            outputs.view(-1, outputs.shape[-1]).addmm_(narrow, self.mix.up)
        return outputs


class LoadedPolicies:
    """Policies by name, each with its newest version, and older versions while requests finish with them.

    Callers call `take` and, once the request is answered, `leave`, both from any thread.
    """

    def __init__(self, model: nn.Module, *, merged_limit: int) -> None:
        """Take over the model's parameters.

        Args:
            model: Its linear layers are changed in place.
            merged_limit: How many adapters may keep merged weights at the same time; each uses as much memory
                as the layers it adapts.
        """
        self.sites = {
            path: AdapterSite(module)
            for path, module in model.named_modules()
            if isinstance(module, nn.Linear | Conv1D)
        }
        self._site_of = {
            module: self.sites[path] for path, module in model.named_modules() if path in self.sites
        }
        self._merged_limit = merged_limit
        self._merged: list[tuple[LoadedPolicy, list[Tensor]]] = []
        """Adapters with merged weights."""
        self._names: list[str] = []
        self._places: list[tuple[dict[str, Any], str]] = []
        table: list[Tensor] = []
        for path, module in model.named_modules():
            for key, parameter in module._parameters.items():
                if parameter is not None and not (key == "weight" and is_quantized(module)):
                    self._names.append(f"{path}.{key}" if path else key)
                    self._places.append((module._parameters, key))
                    table.append(parameter.detach())
        self._index = {name: index for index, name in enumerate(self._names)}
        uses = Counter(tensor.data_ptr() for tensor in table)
        self._own_linears = {
            name
            for name in (f"{path}.weight" for path, site in self.sites.items() if not site.transposed)
            if name in self._index and uses[table[self._index[name]].data_ptr()] == 1
        }
        """Linear layers' weights that are not shared, for example with an embedding."""
        self._has_quantized = any(site.quantized for site in self.sites.values())
        """Whether adapters are not merged: the layers' weights have too few bits."""
        self.base = LoadedPolicy(name=BASE_POLICY, version=0, table=table)
        self._policies: dict[str, LoadedPolicy] = {}
        self._finishing: list[LoadedPolicy] = []
        """Older versions in use."""
        self._lock = threading.Lock()
        """Guards both of these, and the use counts."""
        self._bound: list[Tensor] | None = None
        self._mixed: set[LoadedPolicy] = set()
        """The last combined adapters."""
        self._mixed_factors: dict[str, tuple[_Columns, Tensor, Tensor]] = {}

    def find(self, name: str, version: int | None) -> LoadedPolicy | None:
        """Return the policy at this version (None: the newest), if loaded."""
        policy = self.base if name == BASE_POLICY else self._policies.get(name)
        return policy if policy is not None and version in (policy.version, None) else None

    def take(self, name: str, version: int | None) -> LoadedPolicy | None:
        """Return the policy like `find`, and keep it for one request until `leave`."""
        with self._lock:
            policy = self.find(name, version)
            if policy is not None:
                policy.users += 1
            return policy

    def leave(self, policy: LoadedPolicy) -> None:
        """Record that a request is answered; after an older version's last one its weights are freed."""
        with self._lock:
            policy.users -= 1
            if policy in self._finishing and not policy.users:
                self._finishing.remove(policy)
                _drop(policy)

    def loaded(self) -> dict[str, int]:
        """Return the published policies' newest versions by name."""
        with self._lock:
            return {policy.name: policy.version for policy in self._policies.values()}

    def publish(self, name: str, version: int, weights: PolicyWeights, *, let_finish: bool = False) -> None:
        """Replace a policy's version.

        Args:
            name: The policy's name.
            version: The version of the weights.
            weights: They are copied.
            let_finish: Requests for older versions are finished with them; otherwise older versions are
                dropped.

        Raises:
            InvalidRequestError: The weights do not fit the model, or contain NaN or infinity.
        """
        if name == BASE_POLICY:
            raise InvalidRequestError("the base model cannot be replaced by a publish", field="policy")
        require_finite(weights)
        policy = LoadedPolicy(name=name, version=version)
        if isinstance(weights, AdapterWeights):
            policy.factors = self._factors(weights)
            if not policy.factors:
                policy.table = self.base.table
        else:
            policy.table = self._full_table(weights)
        with self._lock:
            old = self._policies.get(name)
            self._policies[name] = policy
            if old is not None and old.users and let_finish:
                self._finishing.append(old)
            else:
                _drop(old)
            if not let_finish:
                self._drop_finishing(name)

    def retire(self, name: str) -> None:
        """Remove a policy, including for its unanswered requests."""
        with self._lock:
            _drop(self._policies.pop(name, None))
            self._drop_finishing(name)

    def _drop_finishing(self, name: str) -> None:
        for policy in self._finishing:
            if policy.name == name:
                _drop(policy)
        self._finishing = [policy for policy in self._finishing if policy.live]

    def forget_merged(self) -> None:
        """Free the memory of merged adapters; only for the sampling thread."""
        assert self.base.table is not None
        self._bind_table(self.base.table)
        self._forget_mixed()
        self._clear_sites()
        for policy, _ in self._merged:
            if policy.is_adapter:
                policy.table = None
        self._merged.clear()

    def let_go_of_gone(self) -> None:
        """Free the weights of retired policies; only for the sampling thread.

        Merged weights of an older version of a remaining policy stay, because the next version reuses the
        memory.
        """
        assert self.base.table is not None
        with self._lock:
            names = set(self._policies)
            tables = [policy.table for policy in (self.base, *self._policies.values(), *self._finishing)]
        self._merged = [(policy, own) for policy, own in self._merged if policy.live or policy.name in names]
        tables += [own for _, own in self._merged]
        if not any(table is self._bound for table in tables):
            self._bind_table(self.base.table)
        if not all(policy.live for policy in self._mixed):
            self._clear_sites()
            self._forget_mixed()

    def bind(self, segments: Sequence[AdapterSegment]) -> None:
        """Set up the model for a batch; the segments' policies must be compatible (see `batches`)."""
        self._clear_sites()
        if not all(policy.live for policy in self._mixed):
            self._forget_mixed()
        if len(segments) == 1 and not (self._has_quantized and segments[0].policy.is_adapter):
            self._bind_table(self._table_of(segments[0].policy))
            return
        self._bind_table(self._table_of(self.base))
        # A publish may replace a policy's factors at any time; the tables read here stay.
        factors = {segment.policy: segment.policy.factors for segment in segments}
        ranks = sum(next(iter(own.values()))[0].shape[1] for own in factors.values() if own)
        if ranks <= _MOST_RANKS:
            self._put_side_by_side(segments, factors)
            return
        for segment in segments:
            for path, (down, up) in factors[segment.policy].items():
                site = self.sites[path]
                part = segment.rows if site.per_row else segment.tokens
                if part.stop > part.start:
                    site.terms.append((part, down, up))

    def _put_side_by_side(
        self, segments: Sequence[AdapterSegment], factors: Mapping[LoadedPolicy, _Factors]
    ) -> None:
        masks: dict[tuple[bool, _Columns], Tensor] = {}
        for path, (columns, down, up) in self._side_by_side(factors).items():
            site = self.sites[path]
            known = site.per_row, columns
            if known not in masks:
                masks[known] = _foreign(segments, columns, per_row=site.per_row).to(down.device)
            if len(masks[known]):
                site.mix = Mix(down, up, masks[known])

    def _side_by_side(
        self, factors: Mapping[LoadedPolicy, _Factors]
    ) -> dict[str, tuple[_Columns, Tensor, Tensor]]:
        """Return each layer's rank ranges and the combined factors of its adapters."""
        adapters = {policy for policy, own in factors.items() if own}
        if adapters != self._mixed:
            # First, so that an interrupted attempt does not count as complete.
            self._forget_mixed()
            by_path: dict[str, list[LoadedPolicy]] = {}
            for policy in sorted(adapters, key=lambda policy: (policy.name, policy.version)):
                for path in factors[policy]:
                    by_path.setdefault(path, []).append(policy)
            found = {}
            for path, policies in by_path.items():
                downs, ups = zip(*(factors[policy][path] for policy in policies), strict=True)
                ends = list(accumulate(down.shape[1] for down in downs))
                columns = tuple(zip(policies, [0, *ends], ends, strict=False))
                found[path] = columns, torch.cat(downs, dim=1), torch.cat(ups, dim=0)
            self._mixed, self._mixed_factors = adapters, found
        return self._mixed_factors

    def _clear_sites(self) -> None:
        """Reset the layers to their plain weights."""
        for site in self.sites.values():
            site.mix = None
            site.terms.clear()

    def _forget_mixed(self) -> None:
        self._mixed, self._mixed_factors = set(), {}

    @property
    def one_by_one(self) -> bool:
        """Return whether the bound adapters are added one by one, because their total rank is too large."""
        return any(site.terms for site in self.sites.values())

    def site_of(self, module: nn.Module) -> AdapterSite:
        """Return where adapters are added to a linear layer."""
        return self._site_of[module]

    def can_mix(self, policy: LoadedPolicy) -> bool:
        """Return whether the policy can share a batch: the base model, or an adapter on ordinary layers."""
        if policy is self.base:
            return True
        return policy.is_adapter and all(self.sites[path].mixable for path in policy.factors)

    def _bind_table(self, table: list[Tensor]) -> None:
        if table is self._bound:
            return
        for (parameters, key), tensor in zip(self._places, table, strict=True):
            parameters[key] = tensor
        self._bound = table

    def _table_of(self, policy: LoadedPolicy) -> list[Tensor]:
        if policy.table is None:
            # The new weights reuse the memory of a dropped version: fresh memory costs more than the weights.
            spare = next((table for other, table in self._merged if not other.live), None)
            table = self._merge(policy, spare)
            self._merged = [(other, own) for other, own in self._merged if other.live]
            self._merged.append((policy, table))
            policy.table = table
            if len(self._merged) > self._merged_limit:
                self._merged.pop(0)[0].table = None
        return policy.table

    def _merge(self, policy: LoadedPolicy, spare: list[Tensor] | None) -> list[Tensor]:
        """Return the policy's table; merged weights reuse the memory of `spare`, a table like it."""
        assert self.base.table is not None
        table = list(self.base.table)
        for path, (down, up) in policy.factors.items():
            index = self._index[f"{path}.weight"]
            weight = table[index]
            room = None if spare is None or spare[index] is weight else spare[index]
            if self.sites[path].transposed:
                table[index] = torch.addmm(weight, down, up, out=room)
            else:
                # Its columns are contiguous in memory, see `_by_columns`.
                room = None if room is None else room.t()
                table[index] = torch.addmm(weight.t(), down, up, out=room).t()
        return table

    def _factors(self, weights: AdapterWeights) -> dict[str, tuple[Tensor, Tensor]]:
        assert self.base.table is not None
        pairs: dict[str, dict[str, Tensor]] = {}
        for name, tensor in weights.tensors.items():
            path, _, which = name.removeprefix(_PEFT_PREFIX).rpartition(".lora_")
            if path not in self.sites or which not in {"A.weight", "B.weight"}:
                raise InvalidRequestError(
                    f"the adapter has a tensor {name!r}, but the model has no such linear layer",
                    hint="adapters for this engine may only contain lora_A and lora_B of the model's "
                    "linear layers",
                    code="other_model",
                )
            pairs.setdefault(path, {})[which[0]] = tensor
        factors = {}
        for path, pair in pairs.items():
            wide, high = self.sites[path].wide, self.sites[path].high
            expected = {"A": (weights.rank, wide), "B": (high, weights.rank)}
            if {which: tuple(tensor.shape) for which, tensor in pair.items()} != expected:
                raise InvalidRequestError(
                    f"the adapter's factors for {path!r} must have the shapes {expected}",
                    hint="was the adapter trained on another model?",
                )
            # A packed weight is not in the table; its layer computes in the format of the others.
            like = self.base.table[self._index.get(f"{path}.weight", 0)]
            down = pair["A"].detach().to(like.device, like.dtype).t().contiguous()
            up = pair["B"].detach().to(like.device, like.dtype).t() * weights.scaling
            if not bool(torch.isfinite(down).all() and torch.isfinite(up).all()):
                # It would also spoil the tokens of other adapters in the batch.
                raise InvalidRequestError(
                    f"the adapter's factors for {path!r} overflow {like.dtype}",
                    hint="the learner diverged; lower alpha or the learning rate",
                )
            factors[path] = (down, up.contiguous())
        return factors

    def _full_table(self, weights: FullWeights) -> list[Tensor]:
        assert self.base.table is not None
        given = {name: tensor for name, tensor in weights.tensors.items() if name in self._index}
        # Tied parameters are one tensor with several names; a state dict may contain only one.
        tied = {tensor.data_ptr(): given[name] for name, tensor in self._named_base() if name in given}
        table = []
        for name, loaded in self._named_base():
            tensor = given.get(name, tied.get(loaded.data_ptr()))
            if tensor is None or tensor.shape != loaded.shape:
                raise InvalidRequestError(
                    f"the weights lack {name!r} in the shape {tuple(loaded.shape)}",
                    hint="full weights must contain every parameter of the model under its state_dict name",
                    code="other_model",
                )
            room = _by_columns(loaded) if name in self._own_linears else torch.empty_like(loaded)
            table.append(room.copy_(tensor.detach()))
        return table

    def _named_base(self) -> list[tuple[str, Tensor]]:
        assert self.base.table is not None
        return list(zip(self._names, self.base.table, strict=True))


def _foreign(segments: Sequence[AdapterSegment], columns: _Columns, *, per_row: bool) -> Tensor:
    """Return [tokens, ranks], True where a rank belongs to another token's adapter."""
    own = {policy: slice(start, stop) for policy, start, stop in columns}
    parts = [segment.rows if per_row else segment.tokens for segment in segments]
    foreign = torch.ones(parts[-1].stop, columns[-1][2], dtype=torch.bool)
    for segment, part in zip(segments, parts, strict=True):
        if segment.policy in own:
            foreign[part, own[segment.policy]] = False
    return foreign


def _by_columns(weight: Tensor) -> Tensor:
    """Return an empty tensor like a linear layer's weight, with contiguous columns.

    On a CPU, products with few rows, as in sampling, take a third less time if the weight need not be
    rearranged. The base model's own weights are left unchanged, because they are mapped from a file.
    """
    return weight.new_empty(weight.shape[::-1]).t()


def _drop(policy: LoadedPolicy | None) -> None:
    if policy is not None:
        policy.live = False
        # Slots may reference the policy for long, but must not keep its weights alive.
        policy.table, policy.factors = None, {}
