"""A job's checkpoints: when one is made, what it covers, which are kept, and how a job begins from one."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

from backend.learner.checkpoints import put_back_replaced
from backend.training.job_context import JobContext
from tinkergym.errors import CheckpointCorruptError, NotFoundError
from tinkergym.wire import CheckpointEvent, CheckpointView, JobSpec, LoRA, TrainingSpec, WarningEvent
from tinkergym.wire_algorithms import PPO

_log = logging.getLogger(__name__)


def restore(context: JobContext[TrainingSpec]) -> int:
    """Create the job's policy, from the newest usable checkpoint or untrained; returns its step.

    A checkpoint that is damaged is passed over with a warning: an older one only means more steps to repeat.
    It stays known until the next `save`, as it may only be out of reach for the moment.
    """
    forget_policy(context)
    spec = context.spec
    put_back_replaced(context.checkpoints_dir)
    for view in reversed(context.store.checkpoints(context.job_id)):
        try:
            _load(context, view)
        except CheckpointCorruptError as error:
            context.store.append_event(
                context.lease,
                WarningEvent(name="checkpoint_damaged", message=str(error), step=view.step),
            )
        else:
            return view.step
    if spec.initial_policy:
        begin_from(context, spec.initial_policy)
    else:
        context.learner.create_policy(
            context.job_id, spec.adapter, seed=spec.seed, value_head=_learns_values(spec)
        )
    return 0


def _learns_values(spec: TrainingSpec) -> bool:
    return isinstance(spec, JobSpec) and isinstance(spec.algorithm, PPO)


def begin_from(context: JobContext[TrainingSpec], policy: str) -> None:
    """Create the job's policy with the weights of another job, and keep them in a checkpoint of step 0.

    Where both jobs train a value head, it goes on with the other's.

    From then on it is no matter what becomes of the other job's checkpoints.

    Raises:
        NotFoundError: The checkpoint is no longer there.
        ConflictError: It belongs to another base model or adapter.
    """
    job_id, _, version = policy.partition("@")
    for view in context.store.checkpoints(job_id):
        if view.policy_version == int(version):
            context.learner.load(
                context.job_id,
                view.path,
                context.spec.adapter,
                fresh_optimiser=True,
                value_head=_learns_values(context.spec),
            )
            save(context, 0)
            return
    raise NotFoundError(
        f"{policy} is there no longer: its job has removed that checkpoint",
        hint="name a version that is kept, or begin with a job that has ended",
        field="initial_policy",
    )


@contextlib.contextmanager
def beginning(context: JobContext[TrainingSpec], *, asked_again: bool = False) -> Iterator[str | None]:
    """Give the learner's name of the policy that the job began with; None is the model itself.

    Args:
        context: Of the job.
        asked_again: Whether it will be asked in later steps, too. An adapter then stays loaded until
            `forget_policy`. Whole models do not, and are read again: what one takes is better left to the
            updates in between.

    Raises:
        NotFoundError: Its weights are no longer there.
    """
    if not context.spec.initial_policy:
        yield None
        return
    policy_id = _beginning_id(context)
    stays = asked_again and isinstance(context.spec.adapter, LoRA)
    if not (stays and policy_id in context.learner.policy_ids):
        with contextlib.suppress(NotFoundError):
            context.learner.drop(policy_id)
        directory = context.checkpoints_dir / "step-000000"
        context.learner.load(policy_id, directory, context.spec.adapter, fresh_optimiser=True)
    try:
        yield policy_id
    finally:
        if not stays:
            context.learner.drop(policy_id)


def _beginning_id(context: JobContext[TrainingSpec]) -> str:
    return f"{context.job_id}@0"


def _load(context: JobContext[TrainingSpec], view: CheckpointView) -> None:
    manifest = context.learner.load(
        context.job_id, view.path, context.spec.adapter, value_head=_learns_values(context.spec)
    )
    if manifest.files[manifest.weights_file].sha256 != view.sha256:
        # A worker that lost the job while it wrote cannot be kept from the disk, only from the store.
        forget_policy(context)
        raise CheckpointCorruptError(f"checkpoint {view.path} is not the one that was recorded")


def save(context: JobContext[TrainingSpec], step: int) -> None:
    """Write a checkpoint of `step`, make it known, and drop what it makes superfluous."""
    spec = context.spec
    directory = context.checkpoints_dir / f"step-{step:06d}"
    manifest = context.learner.save(
        context.job_id,
        directory,
        step=step,
        policy_version=step,
        extra={"job_id": context.job_id, "spec": context.lease.spec.model_dump(mode="json")},
    )
    view = CheckpointView(
        step=step,
        policy_version=step,
        path=str(directory),
        sha256=manifest.files[manifest.weights_file].sha256,
        files=_file_sizes(directory),
    )
    context.store.add_checkpoint(context.lease, view)
    context.store.append_event(
        context.lease,
        CheckpointEvent(step=step, policy_version=step, path=view.path, sha256=view.sha256),
    )
    context.store.discard_episodes(context.lease, through_step=step)
    views = context.store.checkpoints(context.job_id)
    for view in views:
        if view.step > step:
            # `restore` passed it over. Counted among the newest it would push out what is made from now on.
            context.store.remove_checkpoint(context.lease, view.step)
            _log.warning(
                "%s lists the damaged checkpoint %s no longer; its files stay until it saves that step again",
                context.job_id,
                view.path,
            )
    # What the job began with stays: losses may compare the policy with it.
    made = [view for view in views if 0 < view.step <= step]
    for old in made[: -spec.keep_checkpoints]:
        # First out of the store, then off the disk: a kill in between leaves files, never a dangling promise.
        context.store.remove_checkpoint(context.lease, old.step)
        shutil.rmtree(old.path, ignore_errors=True)


def forget_policy(context: JobContext[TrainingSpec]) -> None:
    """Drop the job's policy from the learner, and the one that it began with, if they are there."""
    for policy_id in (context.job_id, _beginning_id(context)):
        with contextlib.suppress(NotFoundError):
            context.learner.drop(policy_id)


def _file_sizes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(directory.iterdir())}
