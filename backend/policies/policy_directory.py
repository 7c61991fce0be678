"""Which policies a pool can sample: those that jobs train here, and stored ones, loaded on demand."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from backend.compute.weights import PolicyWeights
from backend.engines.protocol import BASE_POLICY, SamplingEngine
from backend.policies.policies_in_use import Answering, PoliciesInUse
from tinkergym.agent.sampler import Deliver
from tinkergym.errors import (
    InvalidRequestError,
    NotFoundError,
    PolicyVersionGoneError,
    ServiceUnavailableError,
)
from tinkergym.schema.ids import PolicyRef, policy_of
from tinkergym.schema.sampling import SampleRequest

_TRIES = 3
"""Attempts to resolve a request before another one evicts its policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPolicy:
    """A policy in the store, whether or not it is being trained."""

    policy_id: str
    versions: tuple[int, ...]
    """Versions with a checkpoint, oldest first."""
    read: Callable[[int], PolicyWeights]
    """Reads the weights of one of them."""
    from_base: bool = True
    """Whether its training started from the model itself, so that version 0 is the model."""
    repeats_until: int | None = None
    """For an unfinished policy that its owner trains by calls: the last published version, or 0. Where its
    checkpoints lack it, the calls are repeated."""


FindPolicy = Callable[[str], StoredPolicy]
"""Looks up a client's name for a policy; raises NotFoundError if there is none."""


class PolicyDirectory:
    """Turns clients' policy names into what the engine has loaded.

    The engine has a policy's newest version under the policy's id. A requested older version is loaded next
    to it, as `policy-ID@VERSION`.
    """

    def __init__(
        self, engine: SamplingEngine, *, model_names: Iterable[str], find: FindPolicy, keep_idle: int
    ) -> None:
        """Serve `engine`; at most `keep_idle` policies stay loaded that are neither trained nor in use."""
        self._engine = engine
        self._model_names = frozenset(model_names)
        self._find = find
        self._keep_idle = keep_idle
        self._lock = threading.Lock()
        self._ids: dict[str, str] = {}
        """The policy's id, by every name under which it was requested or is trained."""
        self._jobs: dict[str, str] = {}
        """The job that trains a policy here, by the policy's id."""
        self._not_from_base: set[str] = set()
        self._called: set[str] = set()
        """Policies whose owners decide when to publish."""
        self._awaited: dict[str, int] = {}
        """The version that a job is about to publish again, by the policy's id."""
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._in_use = PoliciesInUse()

    def hold(
        self,
        policy_id: str,
        *,
        job_id: str,
        agent: str = "",
        from_base: bool = True,
        by_calls: bool = False,
    ) -> None:
        """From now on a job publishes this policy itself.

        Args:
            policy_id: Its id.
            job_id: The job that trains it.
            agent: The agent whose policy it is; empty if the job trains one.
            from_base: Whether its training started from the model itself, so that version 0 is the model.
            by_calls: Whether its owner decides when to publish, so a request for the newest version needs no
                copy that outlives it.
        """
        with self._lock:
            self._ids[policy_id] = self._ids[policy_of(job_id, agent)] = policy_id
            self._jobs[policy_id] = job_id
            if not from_base:
                self._not_from_base.add(policy_id)
            if by_calls:
                self._called.add(policy_id)
            self._idle.pop(policy_id, None)
            # Versions that the job makes again may differ from the loaded ones.
            for name in [name for name in self._idle if PolicyRef.parse(name).owner == policy_id]:
                self._idle.pop(name)
                self._engine.retire(name)

    def release(self, policy_id: str) -> None:
        """The job ended or gave up its place; the last version stays loaded until others evict it.

        If its owner saved a newer one at the end, that is the newest from now on, and is loaded on demand.
        """
        with self._lock:
            self._jobs.pop(policy_id, None)
            self._awaited.pop(policy_id, None)
            loaded = self._engine.loaded().get(policy_id)
            if loaded is None:
                return
            if policy_id in self._called and self._is_outdated(policy_id, loaded):
                self._engine.retire(policy_id)
            else:
                self._became_idle(policy_id)

    def await_version(self, policy_id: str, version: int | None) -> None:
        """Until this version is published again, refuse requests for it or for the newest version.

        Args:
            policy_id: The policy.
            version: The version; None means that it is published.
        """
        with self._lock:
            if version is None:
                self._awaited.pop(policy_id, None)
            else:
                self._awaited[policy_id] = version

    def trained_by(self, policy: str) -> str | None:
        """Return the job that trains a policy here, by any of the policy's names; None if none does."""
        return self._jobs.get(self._ids.get(policy, policy))

    def resolve(
        self, request: SampleRequest, *, is_training: Callable[[], bool] = lambda: False
    ) -> SampleRequest:
        """Return the request with the engine's name of a published policy.

        The engine decides which version is the newest, because that may change until it takes the request.

        Args:
            request: A request with a client's name for a policy.
            is_training: Whether the request is for a training episode. It gets no version from disk: it needs
                the newest one, or its episode is outdated.

        Raises:
            NotFoundError: The policy is neither loaded nor stored.
            PolicyVersionGoneError: The version is not stored.
            ServiceUnavailableError: Its job will publish the version again, after a restart.
            InvalidRequestError: A model's name with a version; only policies have versions.
        """
        if request.policy in self._model_names:
            if request.policy_version:
                raise InvalidRequestError(
                    f"{request.policy!r} is a model, which has no version {request.policy_version}",
                    hint="leave it out, or use the id of the job whose policy is meant",
                    field="policy_version",
                )
            return request.model_copy(update={"policy": BASE_POLICY, "policy_version": 0})
        ref = PolicyRef.find(request.policy)
        if ref is not None and ref.version is not None:
            return self._definite(request, ref.whose, ref.version)
        # Without the lock, which is held while a version loads: `resolve_for` notices what changes here.
        policy_id = self._ids.get(request.policy) or self._look_up(request.policy).policy_id
        newest, wanted = self._engine.loaded().get(policy_id), request.policy_version
        if (awaited := self._awaited.get(policy_id)) is not None and wanted in (None, awaited):
            raise _published_later(request.policy, awaited)
        # The job may publish its next version during sampling.
        lasting = wanted is not None and policy_id in self._jobs and not is_training()
        lasting = lasting and not (policy_id in self._called and wanted == newest)
        if wanted == 0 and (newest != 0 or lasting) and policy_id not in self._not_from_base:
            # Version 0 is the untrained model, whatever was published since.
            return request.model_copy(update={"policy": BASE_POLICY})
        if lasting and wanted is not None and (copy := self._copy(request.policy, policy_id, wanted)):
            return request.model_copy(update={"policy": copy})
        name = policy_id
        if newest is None or wanted is None:
            is_other = newest is None
        elif policy_id in self._jobs:  # A later version is yet to come.
            is_other = wanted < newest
        else:  # Its owner may have saved a later one than was published.
            is_other = wanted != newest
        if is_other and not (newest is not None and is_training()):
            name = self._load(request.policy, policy_id, None if is_training() else wanted)
        elif policy_id in self._idle:
            self._touch(policy_id)
        return request.model_copy(update={"policy": name})

    def answering(self, deliver: Deliver) -> Answering:
        """Return a `deliver` for requests of `resolve_for`."""
        return self._in_use.answering(deliver)

    def resolve_for(
        self, answering: Answering, request: SampleRequest, *, is_training: Callable[[], bool]
    ) -> SampleRequest:
        """Like `resolve`, but the policy stays loaded until `answering` has the completion.

        A league may use more versions at once than stay loaded when idle.
        """
        for _ in range(_TRIES):
            resolved = self.resolve(request, is_training=is_training)
            if resolved.policy == BASE_POLICY or resolved.policy in self._jobs:
                break
            with self._lock:
                if resolved.policy in self._idle:
                    answering.takes(resolved)
                    break
            # Other requests evicted it since it was resolved.
        return resolved

    def _definite(self, request: SampleRequest, whose: str, version: int) -> SampleRequest:
        """Resolve a name with a version, `job-ID/AGENT@40`: an opponent in a game.

        However far training has advanced, this is that version, from its checkpoint.
        """
        policy_id = self._ids.get(whose) or self._look_up(whose).policy_id
        if version == 0 and policy_id not in self._not_from_base:
            return request.model_copy(update={"policy": BASE_POLICY, "policy_version": 0})
        copy = self._copy(whose, policy_id, version)
        if copy is None:
            raise PolicyVersionGoneError(
                f"version {version} of {whose} is not stored",
                hint="see checkpoint_every and keep_checkpoints",
                field="policy",
            )
        return request.model_copy(update={"policy": copy, "policy_version": version})

    def _look_up(self, policy: str) -> StoredPolicy:
        stored = self._find(policy)
        with self._lock:
            self._ids[policy] = stored.policy_id
            if not stored.from_base:
                self._not_from_base.add(stored.policy_id)
        return stored

    def _copy(self, policy: str, policy_id: str, version: int) -> str | None:
        """Return the engine's name for a fixed version, loading it if necessary.

        None if the version has no checkpoint.
        """
        name = str(PolicyRef(owner=policy_id, version=version))
        # Held while it loads: no version is loaded twice, or retired before it is used.
        with self._lock:
            if name not in self._engine.loaded():
                stored = self._find(policy)
                if version not in stored.versions:
                    return None
                self._engine.publish(name, version, stored.read(version))
            self._became_idle(name)
            return name

    def _load(self, policy: str, policy_id: str, wanted: int | None) -> str:
        """Load a version that the engine lacks; returns the engine's name for it.

        Without a version, loads the newest stored one, unless a job here is about to publish the policy.
        """
        with self._lock:
            loaded = self._engine.loaded()
            newest = loaded.get(policy_id)
            if newest is not None and wanted in (None, newest):  # Another request was faster.
                return policy_id
            stored = self._find(policy)
            nothing = newest is None and not stored.versions
            if wanted is None and nothing and stored.repeats_until is not None:
                raise _published_later(policy, 0)
            if wanted is None and (policy_id in self._jobs or not stored.versions):
                raise NotFoundError(
                    f"policy {policy!r} has no weights yet",
                    hint="sample it after its job has started, or after its first checkpoint",
                    field="policy",
                )
            version = stored.versions[-1] if wanted is None else wanted
            if version not in stored.versions:
                if max(stored.versions, default=0) < version <= (stored.repeats_until or 0):
                    raise _published_later(policy, version)
                kept = ", ".join(map(str, stored.versions)) or "none yet"
                raise PolicyVersionGoneError(
                    f"version {version} of {policy} is neither the newest nor stored",
                    hint=f"stored: {kept}; see checkpoint_every and keep_checkpoints",
                    field="policy_version",
                )
            is_newest = newest is None and policy_id not in self._jobs and version == stored.versions[-1]
            name = policy_id if is_newest else str(PolicyRef(owner=policy_id, version=version))
            if name not in loaded:
                self._engine.publish(name, version, stored.read(version))
            self._became_idle(name)
            return name

    def _is_outdated(self, policy_id: str, version: int) -> bool:
        """Whether a later version than this one is stored, and none will be published."""
        try:
            stored = self._find(policy_id)
        except (NotFoundError, ServiceUnavailableError):
            return False
        return stored.repeats_until is None and max(stored.versions, default=0) > version

    def _touch(self, name: str) -> None:
        with self._lock:
            if name in self._idle:
                self._idle.move_to_end(name)

    def _became_idle(self, name: str) -> None:
        self._idle[name] = None
        self._idle.move_to_end(name)
        # Never the newest, which its caller is about to use.
        for oldest in list(self._idle)[:-1]:
            if len(self._idle) <= self._keep_idle:
                break
            if oldest not in self._in_use:
                del self._idle[oldest]
                self._engine.retire(oldest)


def _published_later(policy: str, version: int) -> ServiceUnavailableError:
    what = f"version {version} again" if version else "its first version"
    return ServiceUnavailableError(
        f"{policy} does not run yet; it publishes {what} when it has a place", hint="try again in a moment"
    )
