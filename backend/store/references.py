"""Resolve references to policies: which policy, and which of its stored versions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlalchemy import Connection, select

from backend.store.job_rows import checkpoint_views, job_row
from backend.store.journal import evaluation_events
from backend.store.policies import (
    PolicyRecord,
    policies_by_agent,
    policy_record,
    policy_row,
)
from backend.store.tables import job_policies
from tinkergym.errors import InvalidRequestError, NotFoundError
from tinkergym.schema.events import CheckpointView
from tinkergym.schema.ids import PolicyRef, policy_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferredPolicy:
    """The policy that a reference names, regardless of the version."""

    ref: PolicyRef
    policy: PolicyRecord
    job_id: str
    """The job that trains or trained it."""
    agent: str
    """Its agent in the job; empty if the job trains one policy."""
    kept: tuple[CheckpointView, ...]
    """Its checkpoints, oldest first."""
    best_version: int | None = None
    """The step that was best in the policy's first evaluation; None without evaluations."""

    def version(self, *, field: str = "policy") -> int:
        """Return the version that the reference names; by default the newest stored one.

        Version 0, the model before training, needs no checkpoint.

        Raises:
            NotFoundError: It is not stored, or does not exist.
        """
        if 0 in (self.best_version, self.ref.version, self.ref.step):
            return 0
        return self.checkpoint(field=field).policy_version

    def checkpoint(self, *, field: str = "policy") -> CheckpointView:
        """Return the checkpoint of the version that the reference names; by default the newest.

        Raises:
            NotFoundError: It does not exist; the hint lists the available versions.
        """
        ref, kept = self.ref, self.kept
        if ref.name == "best" and self.best_version is None:
            raise _not_kept(
                kept,
                f"{ref.whose} has no best version, because its job does not evaluate it; see evaluate=",
                field,
            )
        version = self.best_version if ref.name == "best" else ref.version
        chosen = [
            view
            for view in kept
            if (version is None or view.policy_version == version)
            and (ref.step is None or view.step == ref.step)
        ]
        if not chosen:
            of = "" if ref.is_newest else f" of {'version' if ref.step is None else 'step'} "
            number = "" if ref.is_newest else version if ref.step is None else ref.step
            raise _not_kept(kept, f"{ref.whose} has no checkpoint{of}{number}", field)
        return chosen[-1]


def find_policy(
    connection: Connection, ref: PolicyRef, *, tenant_id: str | None, field: str
) -> ReferredPolicy:
    """Find the policy that a reference names.

    Args:
        connection: Connection in a read transaction.
        ref: The reference.
        tenant_id: The tenant that must own the policy; None allows all.
        field: The field for errors.

    Raises:
        NotFoundError: There is no such policy, or it is another tenant's.
        InvalidRequestError: The job trains several policies, and the reference does not say which.
    """
    job_id, agent = _of_policy(connection, ref.owner) if ref.names_policy else (ref.owner, ref.agent)
    job = job_row(connection, job_id) if job_id else None
    if job is None or tenant_id not in (None, job.tenant_id):
        if ref.names_policy:
            raise NotFoundError(
                f"there is no policy {ref.owner!r}",
                hint="`client.find_policy(JOB_ID)` returns the id of a job's policy",
                field=field,
            )
        raise NotFoundError(f"there is no job {job_id!r}", hint="`tinkergym jobs` lists yours", field=field)
    policies = policies_by_agent(connection, job_id)
    if not agent and len(policies) == 1:
        # In self-play, the job's only policy belongs to its first agent.
        (agent,) = policies
        ref = replace(ref, agent=agent)
    if agent not in policies:
        raise _which(ref, sorted(policies), field)
    row = policy_row(connection, policies[agent])
    assert row is not None, "deleting a job deletes its policies"
    return ReferredPolicy(
        ref=ref,
        policy=policy_record(row),
        job_id=job_id,
        agent=agent,
        kept=tuple(checkpoint_views(connection, job_id, agent)),
        best_version=next(
            (
                one.policy_version
                for one in reversed(evaluation_events(connection, job_id))
                if one.best and one.agent == agent
            ),
            None,
        )
        if ref.name == "best"
        else None,
    )


def _of_policy(connection: Connection, policy_id: str) -> tuple[str, str]:
    """Return the job that trains a policy, and its agent in that job; two empty strings if there is none."""
    row = connection.execute(
        select(job_policies.c.job_id, job_policies.c.agent).where(job_policies.c.policy_id == policy_id)
    ).first()
    return ("", "") if row is None else (row.job_id, row.agent)


def _which(ref: PolicyRef, agents: list[str], field: str) -> InvalidRequestError | NotFoundError:
    written = ", ".join(policy_of(ref.owner, agent) for agent in agents)
    if not ref.agent:
        return InvalidRequestError(
            f"{ref.owner} trains several policies", hint=f"name one of {written}", field=field
        )
    return NotFoundError(
        f"{ref.owner} trains no policy for the agent {ref.agent!r}", hint=f"it trains {written}", field=field
    )


def _not_kept(kept: tuple[CheckpointView, ...], what: str, field: str) -> NotFoundError:
    there = ", ".join(map(str, sorted({view.policy_version for view in kept}))) or "none yet"
    return NotFoundError(what, hint=f"versions with a checkpoint: {there}", field=field)
