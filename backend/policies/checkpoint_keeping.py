"""A policy's checkpoints: how it starts from one, what one contains, which are kept, and their weights."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import JsonValue

from backend.compute.weights import AdapterWeights, PolicyWeights, weights_sha256
from backend.errors import BlobsUnavailableError
from backend.learner.checkpoints import Checkpoint
from backend.learner.policy_checkpoints import full_weights
from backend.policies.policy_binding import PolicyBinding
from backend.policies.teacher import LoadedPolicy
from backend.store.blobs import checkpoint_key, new_checkpoint_key
from tinkergym.errors import CheckpointCorruptError, NotFoundError
from tinkergym.schema.events import CheckpointEvent, CheckpointView, WarningEvent
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.jobs.parts import LoRA

_log = logging.getLogger(__name__)


class CheckpointKeeping:
    """The checkpoints of one policy, and how the learner uses them."""

    def __init__(self, bound: PolicyBinding) -> None:
        self._bound = bound
        self._id, self._learner, self._lease = bound.policy_id, bound.learner, bound.lease
        self._files = bound.pool.job_files
        self._tries: Counter[int] = Counter()
        """How often this attempt has stored a step."""
        self._kept_steps: dict[str, frozenset[int]] = {}
        """Steps whose checkpoints are kept besides the newest ones, by reason."""
        self.notes: dict[str, JsonValue] = {}
        """State of the job's loop in each checkpoint, restored when it resumes."""
        self._store, self._spec = bound.pool.store, bound.lease.spec.for_agent(bound.agent)
        self._adapter = self._spec.adapter

    @property
    def _beginning_id(self) -> str:
        return str(PolicyRef(owner=self._id, version=0))

    @property
    def _has_value_head(self) -> bool:
        return self._spec.has_value_head

    def restore(self, at_most: int | None = None) -> int:
        """Create the policy, from the newest usable checkpoint or untrained; returns its step.

        A damaged checkpoint is skipped with a warning: an older one only means more steps to repeat. It stays
        listed until the next `save`, because it may only be temporarily unreadable. One that is missing is
        not skipped: the job must not repeat steps because a disk or a network is away.

        Args:
            at_most: Skip checkpoints of later steps, which the job's other policies do not have.

        Raises:
            BlobsUnavailableError: Its files cannot be read now.
        """
        self.forget()
        self.notes = {}
        spec = self._spec
        for view in reversed(self.views()):
            if at_most is not None and view.step > at_most:
                continue
            try:
                self._read(view)
            except CheckpointCorruptError as error:
                self._store.append_event(
                    self._lease,
                    WarningEvent(name="checkpoint_damaged", message=str(error), step=view.step),
                )
            else:
                return view.step
        if spec.initial_policy:
            self._begin_from(spec.initial_policy)
        else:
            self._learner.create_policy(
                self._id,
                self._adapter,
                seed=spec.seed,
                value_head=self._has_value_head,
                optimizer=spec.optimizer,
            )
        return 0

    def views(self) -> list[CheckpointView]:
        """Return the stored checkpoints, oldest first."""
        return self._store.checkpoints(self._lease.job_id, self._bound.agent)

    def save(self, step: int, *, version: int | None = None) -> None:
        """Write a checkpoint of `step`, and record it.

        Args:
            step: The last step that it covers.
            version: The version of its weights; None means that they are new in this step.
        """
        lease, agent = self._lease, self._bound.agent
        version = step if version is None else version
        # A step may be saved again, as after a store that did not answer, and no key is written twice.
        key = new_checkpoint_key(lease.job_id, agent, step, epoch=lease.epoch, retry=self._tries[step])
        with self._files.filling(key) as directory:
            manifest = self._learner.save(
                self._id,
                directory,
                step=step,
                policy_version=version,
                extra={
                    "job_id": self._lease.job_id,
                    "spec": self._spec.model_dump(mode="json"),
                    **({"notes": self.notes} if self.notes else {}),
                },
            )
            sizes = {file.name: file.stat().st_size for file in sorted(directory.iterdir())}
        view = CheckpointView(
            step=step,
            policy_version=version,
            key=key,
            sha256=manifest.files[manifest.weights_file].sha256,
            files=sizes,
        )
        # Before it is recorded: the key is used even if that fails.
        self._tries[step] += 1
        self._store.add_checkpoint(lease, view, agent)
        self._store.append_event(
            lease,
            CheckpointEvent(step=step, policy_version=version, key=key, sha256=view.sha256, agent=agent),
        )

    def keep_steps(self, steps: Iterable[int], *, why: str = "evaluations") -> None:
        """Keep the checkpoints of these steps, instead of those kept for this reason before."""
        kept = frozenset(steps)
        freed = self._kept_steps.get(why, frozenset()) - kept
        self._kept_steps[why] = kept
        if freed and (views := self.views()):
            self.tidy(views[-1].step)

    def load_aside(self, policy: str, *, with_optimizer: bool) -> str:
        """Load a stored version, its own or another's of the same model and adapter, under another name.

        So one that does not match leaves the policy unchanged.

        Returns:
            Its name in the learner.

        Raises:
            NotFoundError: The version is not stored.
            ConflictError: It belongs to another base model or adapter.
            CheckpointCorruptError: Its files are damaged.
        """
        directory = self._bound.pool.checkpoint(self._store.find_policy(PolicyRef.parse(policy)))
        aside = f"{self._id}/loading"
        # An earlier call may have been interrupted before it replaced the policy.
        self._drop(aside)
        self._learner.load(
            aside,
            directory,
            self._adapter,
            fresh_optimizer=not with_optimizer,
            optimizer=self._spec.optimizer,
        )
        return aside

    @contextlib.contextmanager
    def beginning(self, *, asked_again: bool = False) -> Iterator[LoadedPolicy]:
        """Return the policy that the job started from, which may be the model itself.

        Args:
            asked_again: Whether it will be used in later steps, too. An adapter then stays loaded until
                `forget`. Whole models are read again, because the updates in between need the memory.

        Raises:
            NotFoundError: Its weights were deleted.
        """
        if not self._spec.initial_policy:
            yield LoadedPolicy(self._learner, None, shared=True)
            return
        is_adapter = isinstance(self._adapter, LoRA)
        is_there = is_adapter and self._beginning_id in self._learner.policy_ids
        # A caller that asks once leaves it to the one that asks in every step.
        stays = is_there or (is_adapter and asked_again)
        if not is_there:
            self._drop(self._beginning_id)
            directory = self._local(next(view for view in self.views() if view.step == 0))
            self._learner.load(self._beginning_id, directory, self._adapter, fresh_optimizer=True)
        try:
            yield LoadedPolicy(self._learner, self._beginning_id, shared=True)
        finally:
            if not stays:
                self._learner.drop(self._beginning_id)

    def forget(self) -> None:
        """Drop the policy from the learner, and its initial policy, if they are loaded."""
        self._drop(self._id)
        self._drop(self._beginning_id)

    def _begin_from(self, policy: str) -> None:
        """Create the policy with the weights of another, and save them in a checkpoint of step 0.

        If both train a value head, it continues with the other's. Afterwards the other's checkpoints are no
        longer needed.

        Raises:
            NotFoundError: The checkpoint was deleted.
            ConflictError: It belongs to another base model or adapter.
        """
        field = "initial_policy"
        found = self._store.find_policy(PolicyRef.parse(policy), field=field)
        self._learner.load(
            self._id,
            self._bound.pool.checkpoint(found, field=field),
            self._adapter,
            fresh_optimizer=True,
            value_head=self._has_value_head,
            optimizer=self._spec.optimizer,
        )
        self.save(0)
        self.tidy(0)

    def _read(self, view: CheckpointView) -> None:
        directory = self._local(view)
        manifest = self._learner.load(
            self._id,
            directory,
            self._adapter,
            value_head=self._has_value_head,
            optimizer=self._spec.optimizer,
        )
        if manifest.files[manifest.weights_file].sha256 != view.sha256:
            # A worker that lost the job while writing can be kept from the store, but not from the disk.
            self.forget()
            raise CheckpointCorruptError(f"checkpoint {directory} differs from the recorded one")
        notes = manifest.extra.get("notes")
        self.notes = dict(notes) if isinstance(notes, dict) else {}

    def tidy(self, step: int) -> None:
        """Forget checkpoints that `restore` skipped, and the oldest beyond `keep_checkpoints`."""
        views = self.views()
        for view in views:
            if view.step > step:
                # Counted among the newest, it would push out later ones.
                self._store.remove_checkpoint(self._lease, view.step, self._bound.agent)
                _log.warning(
                    "%s lists the damaged checkpoint %s no longer; its files stay for a day",
                    self._lease.job_id,
                    self._key(view),
                )
        # The initial policy stays: losses may compare the policy with it.
        kept = frozenset[int]().union(*self._kept_steps.values())
        made = [view for view in views if 0 < view.step <= step and view.step not in kept]
        for old in made[: -self._spec.keep_checkpoints]:
            # First from the store, then from the disk: a kill in between leaves files, never a
            # record without files. The collector removes them. Other jobs may start from a version or play
            # against it; they were told that it exists.
            if self._store.remove_checkpoint(
                self._lease, old.step, self._bound.agent, unused_version=old.policy_version
            ):
                with contextlib.suppress(OSError, BlobsUnavailableError):
                    self._files.delete(self._key(old))

    def _key(self, view: CheckpointView) -> str:
        return checkpoint_key(self._lease.job_id, self._bound.agent, view)

    def _local(self, view: CheckpointView) -> Path:
        return self._files.local(self._key(view))

    def _drop(self, policy_id: str) -> None:
        with contextlib.suppress(NotFoundError):
            self._learner.drop(policy_id)


def stored_weights(checkpoint: Checkpoint) -> PolicyWeights:
    """Read them, and check their hash.

    Raises:
        CheckpointCorruptError: The weights are damaged.
    """
    manifest = checkpoint.manifest
    weights: PolicyWeights
    if isinstance(manifest.adapter, LoRA):
        tensors = checkpoint.tensors(manifest.weights_file)
        adapter = manifest.adapter
        weights = AdapterWeights(
            rank=adapter.rank, alpha=adapter.alpha, rslora=adapter.rslora, tensors=tensors
        )
    else:
        weights = full_weights(checkpoint)
    if weights_sha256(weights) != manifest.weights_sha256:
        raise CheckpointCorruptError(f"the weights in {checkpoint.directory} do not have its manifest's hash")
    return weights
