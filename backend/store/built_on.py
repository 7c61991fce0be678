"""The policies that unfinished jobs need: as a starting point, teacher or opponent."""

from __future__ import annotations

from sqlalchemy import Connection, or_, select

from backend.store.records import FINAL_STATES
from backend.store.tables import job_policies, jobs
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.jobs.spec import JobSpec, stored_spec


def references_of(spec: JobSpec) -> list[PolicyRef]:
    """Return the policies and jobs that a job depends on."""
    return [PolicyRef.parse(text) for text in dict.fromkeys(spec.references().values())]


def versions_in_use(connection: Connection, job_id: str, agent: str) -> set[int]:
    """Return the versions of the policy trained by this job that unfinished jobs of its tenant still need."""
    tenant_id = select(jobs.c.tenant_id).where(jobs.c.job_id == job_id).scalar_subquery()
    policy_id = connection.scalar(
        select(job_policies.c.policy_id).where(job_policies.c.job_id == job_id, job_policies.c.agent == agent)
    )
    specs = connection.scalars(
        select(jobs.c.spec).where(
            jobs.c.tenant_id == tenant_id,
            jobs.c.job_id != job_id,
            jobs.c.state.not_in(FINAL_STATES),
            # Only the few jobs that name this one are read.
            or_(jobs.c.spec.contains(job_id), jobs.c.spec.contains(policy_id)),
        )
    )
    return {
        ref.version
        for spec in specs
        for ref in references_of(stored_spec(spec))
        if ref.version is not None and (ref.owner == policy_id or (ref.owner, ref.agent) == (job_id, agent))
    }
