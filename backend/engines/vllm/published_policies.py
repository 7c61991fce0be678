"""Policy versions in a vLLM process: the newest of each policy, and older ones that still have work.

Invariant: a version's weights stay readable from before the process is told of it until the process has
confirmed that it reads them no more, or is gone. Bookkeeping only: the caller holds the engine's lock.
"""

from __future__ import annotations

import itertools
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from backend.engines.protocol import BASE_POLICY
from backend.engines.vllm.process import Message
from tinkergym.schema.sampling import SampleRequest

_BASE_KEY = 0


@dataclass(eq=False, slots=True, kw_only=True)
class PolicyVersion:
    """One version of a policy, and where its weights are."""

    key: int
    """Never reused, so vLLM cannot confuse it with another policy or version."""
    name: str
    version: int
    folder: Path
    handed_over: Message = field(default_factory=dict)
    """How the process reads its weights."""
    memory: Tensor | None = None
    """The GPU memory kept for the process."""

    def message(self) -> Message:
        """Return what the process is told about it."""
        return {"policy": self.key, "name": f"{self.name}@{self.version}", **self.handed_over}

    def take_back(self) -> None:
        """Free the weights' memory; no process may read them any more."""
        self.memory = None
        shutil.rmtree(self.folder, ignore_errors=True)


class PublishedPolicies:
    """The versions of one engine."""

    def __init__(self, folder: Path) -> None:
        """Begin without versions; their weights go into folders below `folder`, which is private."""
        self.folder = folder
        self._keys = itertools.count(_BASE_KEY + 1)
        self._newest: dict[str, PolicyVersion] = {}
        self._finishing: dict[int, PolicyVersion] = {}
        """Older versions that finish their requests, by key."""
        self._doomed: dict[int, PolicyVersion] = {}
        """Removed versions that the process may still read, by key."""

    def make(self, name: str, version: int) -> PolicyVersion:
        """Return a version with a new key, which is not published yet. Needs no lock."""
        key = next(self._keys)
        return PolicyVersion(key=key, name=name, version=version, folder=self.folder / f"policy-{key}")

    def newest_versions(self) -> dict[str, int]:
        """Return the newest version of each policy."""
        return {name: policy.version for name, policy in self._newest.items()}

    def present(self) -> list[PolicyVersion]:
        """Return all versions that answer requests."""
        return [*self._newest.values(), *self._finishing.values()]

    def finishing(self) -> list[PolicyVersion]:
        """Return the older versions that finish their requests."""
        return list(self._finishing.values())

    def settled(self, request: SampleRequest) -> SampleRequest:
        """Return the request with the version that answers it."""
        version = self._version(request.policy)
        if version is None or request.policy_version is not None:
            return request
        return request.model_copy(update={"policy_version": version})

    def key_of(self, request: SampleRequest) -> int | None:
        """Return the key of a settled request's version; None if that is not the newest."""
        version = self._version(request.policy)
        if version is None or request.policy_version != version:
            return None
        return _BASE_KEY if request.policy == BASE_POLICY else self._newest[request.policy].key

    def publish(self, made: PolicyVersion, *, let_finish: bool) -> list[PolicyVersion]:
        """Make a version the newest; return those that it ends, which the caller dooms."""
        over = [] if let_finish else self.remove(made.name)
        if (old := self._newest.get(made.name)) is not None:
            self._finishing[old.key] = old
        self._newest[made.name] = made
        return over

    def remove(self, name: str) -> list[PolicyVersion]:
        """Remove all versions of a policy; the caller dooms them."""
        newest = self._newest.pop(name, None)
        older = [policy for policy in self._finishing.values() if policy.name == name]
        for policy in older:
            del self._finishing[policy.key]
        return [*([] if newest is None else [newest]), *older]

    def finished(self, policy: PolicyVersion) -> None:
        """Remove an older version without remaining requests; the caller dooms it."""
        del self._finishing[policy.key]

    def doom(self, policy: PolicyVersion) -> None:
        """Keep a removed version's weights until `unread`."""
        self._doomed[policy.key] = policy

    def unread(self, key: int) -> PolicyVersion | None:
        """Return the removed version that the process reads no more, to be taken back."""
        return self._doomed.pop(key, None)

    def all_unread(self) -> list[PolicyVersion]:
        """Return all removed versions, because the process is gone."""
        found, self._doomed = list(self._doomed.values()), {}
        return found

    def _version(self, name: str) -> int | None:
        if name == BASE_POLICY:
            return 0
        policy = self._newest.get(name)
        return policy.version if policy is not None else None
