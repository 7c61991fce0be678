"""Why a job is still in the queue, as its tenant reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backend.config import ServiceConfig
from backend.scheduler.unplaced import Unplaced, with_own_jobs
from backend.store.store import HeldJob, QueueGroup
from tinkergym.schema.events import JobState

START_ATTEMPTS = 3
"""Pools of one model that may die in a row before they are ready, until its jobs fail."""
_MOST_NAMED = 4
"""Jobs listed in a reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSight:
    """What the queue waits for at this moment."""

    config: ServiceConfig
    ready: Mapping[str, int]
    """How many pools of each model are ready; at least one."""
    held: Mapping[str, Sequence[HeldJob]]
    """The jobs in each model's pools."""
    coming: Counter[str]
    """Jobs per model that were just given a place. They leave the queue by themselves."""
    own: Mapping[tuple[str, str], int]
    """How many more jobs each tenant may start on each model; empty if there is no limit."""
    failed_starts: Counter[str]
    """Pools of each model that died in a row before they were ready."""
    without_room: Mapping[str, str]
    """Why models wait for memory."""
    without_place: Mapping[str, Unplaced]
    """Why models whose pool was asked for have no place; the holders are models."""
    why_queued: Mapping[QueueGroup, str]
    """Why the oldest job of each group entered the queue."""

    def reason(self, job: QueueGroup) -> str:
        """Return why the jobs of a group wait; nothing else if they are about to start."""
        if job.model in self.without_room:
            return self.without_room[job.model]
        if job.model not in self.ready:
            return self._loading(job)
        if len(self.held.get(job.model, ())) + self.coming[job.model] >= self._slots(job.model):
            return self._full(job)
        if self.own.get((job.tenant_id, job.model), 1) < 1:
            return f"your jobs have all slots of {job.model!r} that one tenant may have (jobs_per_tenant)"
        return job.reason if job.reason == self.why_queued[job] else ""

    def _loading(self, queued: QueueGroup) -> str:
        failures = self.failed_starts[queued.model]
        attempt = f", attempt {failures + 1} of {START_ATTEMPTS}" if failures else ""
        now = f"loading the model {queued.model!r}{attempt}"
        if (unplaced := self.without_place.get(queued.model)) is not None:
            yours = {
                model: [job.job_id for job in held if job.tenant_id == queued.tenant_id]
                for model, held in self.held.items()
            }
            now = with_own_jobs(unplaced, yours)
        # Jobs that read the same of slots or memory may have entered it for several reasons.
        before = self.why_queued[queued]
        return f"{now}: {before}" if before and queued.reason.endswith(before) else now

    def _slots(self, model: str) -> int:
        return self.config.jobs_per_pool * self.ready[model]

    def _full(self, queued: QueueGroup) -> str:
        """Say that all slots are taken, and which by the tenant's own jobs whose client is silent."""
        held, slots = self.held.get(queued.model, ()), self._slots(queued.model)
        taken = len(held) + self.coming[queued.model]
        reason = f"{taken} of {slots} slots of {queued.model!r} are taken (jobs_per_pool)"
        silent = [job for job in held if job.state is JobState.WAITING_FOR_CLIENT]
        if not silent:
            return reason
        patience = f"{self.config.client_place_seconds:g} s"
        reason += f", {len(silent)} of them for up to {patience} by jobs that wait for their client"
        # Other tenants' jobs are not shown to this tenant.
        yours = [job.job_id for job in silent if job.tenant_id == queued.tenant_id]
        if yours:
            more = "" if len(yours) <= _MOST_NAMED else f" and {len(yours) - _MOST_NAMED} more"
            reason += f": {', '.join(yours[:_MOST_NAMED])}{more}; attach to yours or cancel them"
        return reason
