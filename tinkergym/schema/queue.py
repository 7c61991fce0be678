"""The slots of each model: who has them, which jobs wait for one, and in which place."""

from __future__ import annotations

from pydantic import Field

from tinkergym.schema.model import WireModel

MOST_WAITING = 500
"""Waiting jobs of a model in one answer; the first of its line."""
MOST_QUEUED = 10_000
"""Waiting jobs, the oldest first, whose places are counted."""


class WaitingJob(WireModel):
    """A job that waits for a slot."""

    job_id: str
    tenant_id: str
    model: str
    position: int | None
    """Its place among the jobs that wait for this model, from 1, if slots became free now and no job were
    submitted. None if its tenant's jobs before it already take all the slots that one may have."""
    reason: str
    """What it waits for."""


class RunningJob(WireModel):
    """A job that has a slot."""

    job_id: str
    tenant_id: str
    pool_id: str
    """The worker that runs it."""


class TenantShare(WireModel):
    """How many slots of a model a tenant has."""

    tenant_id: str
    """Empty for all other tenants together."""
    running: int
    """Jobs with a slot."""
    waiting: int
    """Jobs in the queue."""


class ModelSlots(WireModel):
    """The slots of one model, and who shares them."""

    model: str
    pools: int
    """How many workers have it loaded."""
    slots: int
    """Jobs that they train at once."""
    most_of_one: int | None
    """Slots that one tenant may have; None is all."""
    left_out: int
    """Waiting jobs that the asking tenant sees, but that `waiting` has no place for."""
    shares: list[TenantShare] = Field(max_length=100_000)
    """The most slots first; tenants that neither run nor wait are left out."""
    running: list[RunningJob] = Field(max_length=100_000)
    """The jobs that have a slot: the asking tenant's; for the local owner, all."""


class QueueView(WireModel):
    """Slots and queue: a tenant sees its own jobs and totals; the local owner, those of all tenants.

    A free slot goes to the tenant with the fewest running jobs, of equal ones to the oldest job.
    """

    models: list[ModelSlots] = Field(max_length=10_000)
    waiting: list[WaitingJob] = Field(max_length=MOST_QUEUED)
    """By model, the next first, at most 500 of each; as they were at most a second ago."""
