"""The policies loaded in an engine, and how each is bound to the single copy of the model.

A policy is a table of tensors for the model's parameters. The base model's table contains the loaded weights;
an adapter's differs in the linear layers it adapts, which contain `W + scaling * B @ A`; a full policy's
differs everywhere. Binding a table sets references and copies nothing. If several adapters share a batch, the
base table is bound and each linear layer adds every adapter's product to that adapter's tokens.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from backend.compute.weights import AdapterWeights, PolicyWeights, require_finite
from backend.engines.protocol import BASE_POLICY
from backend.engines.transformers.adapter_site import MOST_RANKS, AdapterSite, Mix
from backend.engines.transformers.parameter_tables import Factors, ParameterTables
from tinkergym.errors import InvalidRequestError


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


_Columns = tuple[tuple[LoadedPolicy, int, int], ...]
"""The range of ranks of each combined adapter."""


class LoadedPolicies:
    """Policies by name, each with its newest version, and older versions while requests finish with them.

    Callers call `take` and, once the request is answered, `leave`, both from any thread.
    """

    def __init__(self, model: nn.Module, *, merged_limit: int) -> None:
        """Take over the model's parameters.

        Args:
            model: Its linear layers are changed in place.
            merged_limit: How many adapters may keep merged weights at the same time; each uses as much memory
                as the layers it adapts. With 0 only those that cannot share a batch are merged, one by one.
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
        self._tables = ParameterTables(model, self.sites)
        self._has_quantized = any(site.quantized for site in self.sites.values())
        """Whether adapters are not merged: the layers' weights have too few bits."""
        self.base = LoadedPolicy(name=BASE_POLICY, version=0, table=self._tables.base)
        self._policies: dict[str, LoadedPolicy] = {}
        self._finishing: list[LoadedPolicy] = []
        """Older versions in use."""
        self._lock = threading.Lock()
        """Guards both of these, and the use counts."""
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
        # Prepared without the lock: meanwhile requests are answered by the version before.
        policy = LoadedPolicy(name=name, version=version)
        if isinstance(weights, AdapterWeights):
            policy.factors = self._tables.factors(weights)
            if not policy.factors:
                policy.table = self._tables.base
        else:
            policy.table = self._tables.full(weights)
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
        self._tables.bind(self._tables.base)
        self._forget_mixed()
        self._clear_sites()
        # The base table is bound by now, so no layer refers to these weights any more.
        for policy, _ in self._merged:
            if policy.is_adapter:
                policy.table = None
        self._merged.clear()

    def free_retired(self) -> None:
        """Free the weights of retired policies; only for the sampling thread.

        Merged weights of an older version of a remaining policy stay, because the next version reuses the
        memory.
        """
        with self._lock:
            names = set(self._policies)
            tables = [policy.table for policy in (self.base, *self._policies.values(), *self._finishing)]
        self._merged = [(policy, own) for policy, own in self._merged if policy.live or policy.name in names]
        tables += [own for _, own in self._merged]
        # The model's parameters refer to the bound table, and would keep a dropped one's memory.
        if not any(table is self._tables.bound for table in tables):
            self._tables.bind(self._tables.base)
        if not all(policy.live for policy in self._mixed):
            self._clear_sites()
            self._forget_mixed()

    def bind(self, segments: Sequence[AdapterSegment]) -> None:
        """Set up the model for a batch; the segments' policies must be compatible (see `batches`)."""
        self._clear_sites()
        if not all(policy.live for policy in self._mixed):
            self._forget_mixed()
        if len(segments) == 1 and self._has_table(segments[0].policy):
            self._tables.bind(self._table_of(segments[0].policy))
            return
        self._tables.bind(self._tables.base)
        # A publish may replace a policy's factors at any time; the tables read here stay.
        factors = {segment.policy: segment.policy.factors for segment in segments}
        ranks = sum(next(iter(own.values()))[0].shape[1] for own in factors.values() if own)
        if ranks <= MOST_RANKS:
            self._put_side_by_side(segments, factors)
            return
        for segment in segments:
            for path, (down, up) in factors[segment.policy].items():
                site = self.sites[path]
                part = segment.rows if site.per_row else segment.tokens
                if part.stop > part.start:
                    site.terms.append((part, down, up))

    def _put_side_by_side(
        self, segments: Sequence[AdapterSegment], factors: Mapping[LoadedPolicy, Factors]
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
        self, factors: Mapping[LoadedPolicy, Factors]
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

    def _has_table(self, policy: LoadedPolicy) -> bool:
        """Whether a policy is computed with a table of its own when it is alone in a batch."""
        if not policy.is_adapter:
            return True
        return not self._has_quantized and (self._merged_limit > 0 or not self.can_mix(policy))

    def _table_of(self, policy: LoadedPolicy) -> list[Tensor]:
        table = policy.table
        if table is None:
            # The new weights reuse the memory of a dropped version: fresh memory costs more than the weights.
            spare = next((table for other, table in self._merged if not other.live), None)
            self._merged = [(other, own) for other, own in self._merged if other.live]
            if len(self._merged) >= max(1, self._merged_limit):
                oldest, own = self._merged.pop(0)
                oldest.table, spare = None, spare or own
            table = self._tables.merged(policy.factors, spare)
            self._merged.append((policy, table))
            policy.table = table
        return table


def _foreign(segments: Sequence[AdapterSegment], columns: _Columns, *, per_row: bool) -> Tensor:
    """Return [tokens, ranks], True where a rank belongs to another token's adapter."""
    own = {policy: slice(start, stop) for policy, start, stop in columns}
    parts = [segment.rows if per_row else segment.tokens for segment in segments]
    foreign = torch.ones(parts[-1].stop, columns[-1][2], dtype=torch.bool)
    for segment, part in zip(segments, parts, strict=True):
        if segment.policy in own:
            foreign[part, own[segment.policy]] = False  # [tokens of the segment, its ranks]
    return foreign


def _drop(policy: LoadedPolicy | None) -> None:
    if policy is not None:
        policy.live = False
        # Slots may reference the policy for long, but must not keep its weights alive.
        policy.table, policy.factors = None, {}
