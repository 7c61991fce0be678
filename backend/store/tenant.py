"""What one tenant can see and do. Another tenant's job is treated as nonexistent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, delete, select, update

from backend.store import lifecycle
from backend.store.database import Database
from backend.store.image_rows import ImageRows
from backend.store.job_rows import (
    FINAL_STATES,
    checkpoint_views,
    enter_state,
    event_view,
    job_row,
    job_view,
)
from backend.store.key_rows import LOCAL_TENANT
from backend.store.policies import (
    forget_policies,
    names_of,
    policies_by_agent,
    references_of,
)
from backend.store.references import ReferredPolicy, find_policy
from backend.store.secret_rows import put_secret
from backend.store.served_name_rows import NameRows
from backend.store.tables import episodes, events, facts, jobs, policy_calls
from backend.store.tenant_lists import TenantLists
from backend.store.tenant_runs import TenantRuns
from backend.store.tenant_submissions import TenantSubmissions
from tinkergym.errors import ConflictError, NotFoundError
from tinkergym.schema.events import (
    CheckpointView,
    Event,
    JobState,
    StateEvent,
)
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.jobs.spec import JobSpec, stored_spec
from tinkergym.schema.jobs.view import JobView


class TenantStore(TenantSubmissions, TenantRuns, TenantLists):
    """The store as one tenant sees it."""

    def __init__(self, database: Database, tenant_id: str, clock: Callable[[], float]) -> None:
        self._db = database
        self._clock = clock
        self.tenant_id = tenant_id

    @property
    def is_local_owner(self) -> bool:
        """Whether it is the tenant that started the service, who may see details of its machine."""
        return self.tenant_id == LOCAL_TENANT

    @property
    def images(self) -> ImageRows:
        """The images that it has sent."""
        return ImageRows(self._db, self.tenant_id, self._clock)

    @property
    def names(self) -> NameRows:
        """The names to which it promoted versions."""
        return NameRows(self._db, self.tenant_id, self._clock)

    def get_job(self, job_id: str) -> JobView:
        """Return one job.

        Raises:
            NotFoundError: It does not exist or is another tenant's.
        """
        with self._db.read() as connection:
            return job_view(self._own(connection, job_id))

    def request_cancel(self, job_id: str) -> JobView:
        """Request the job's cancellation.

        A queued job ends at once; a running one when its worker next checks. An ended job stays unchanged.

        Raises:
            NotFoundError: It does not exist or is another tenant's.
        """
        with self._db.write() as connection:
            row = self._own(connection, job_id)
            if not JobState(row.state).final and row.worker_id is None:
                # No worker holds it, so none would notice the request.
                body = StateEvent(
                    state=JobState.CANCELLED,
                    reason="cancelled before it started" if row.attempt == 0 else "cancelled",
                    attempt=row.attempt,
                )
                enter_state(connection, row, self._clock(), body, cancel_requested=True)
            elif not JobState(row.state).final:
                connection.execute(update(jobs).where(jobs.c.job_id == job_id).values(cancel_requested=True))
            return job_view(self._own(connection, job_id))

    def request_pause(self, job_id: str) -> JobView:
        """Request a pause. A queued job pauses at once; a running one when its worker next checks.

        Raises:
            NotFoundError: It does not exist or is another tenant's.
            ConflictError: It has ended.
        """
        return self._change(job_id, lifecycle.pause)

    def request_resume(self, job_id: str) -> JobView:
        """Queue a paused job again; any other job is unchanged.

        Raises:
            NotFoundError: It does not exist or is another tenant's.
            ConflictError: It has ended, or its budget is used up.
        """
        return self._change(job_id, lifecycle.resume)

    def change_settings(self, job_id: str, settings: Mapping[str, Any]) -> JobView:
        """Change settings of an unfinished job; see `tinkergym.schema.steering`.

        Raises:
            NotFoundError: It does not exist or is another tenant's.
            ConflictError: It has ended.
            InvalidRequestError: A setting cannot be changed, or the value is not allowed.
        """
        return self._change(job_id, partial(lifecycle.change_settings, settings=settings))

    def _change(self, job_id: str, change: Callable[[Connection, Row[Any], float], None]) -> JobView:
        with self._db.write() as connection:
            change(connection, self._own(connection, job_id), self._clock())
            return job_view(self._own(connection, job_id))

    def put_secret(self, value: str) -> str:
        """Store a secret and return its name; the same secret has the same name while it is stored."""
        with self._db.write() as connection:
            return put_secret(connection, self.tenant_id, value, self._clock())

    def delete_job(self, job_id: str) -> None:
        """Delete an ended job, with its events and the records of its checkpoints; its files are left over.

        Raises:
            NotFoundError: It does not exist or is another tenant's.
            ConflictError: It has not ended, or an unfinished job or a name depends on its policy.
        """
        with self._db.write() as connection:
            row = self._own(connection, job_id)
            if not JobState(row.state).final:
                raise ConflictError(
                    f"{job_id} is {row.state}; only a job that has ended can be deleted",
                    hint=f"`tinkergym jobs cancel {job_id}`, then delete it when it has ended",
                    code="not_ended",
                )
            its_own = {job_id, *policies_by_agent(connection, job_id).values()}
            for other_id, spec in self._unfinished(connection):
                if any(ref.owner in its_own for ref in references_of(spec)):
                    raise ConflictError(
                        f"{other_id}, which has not ended, depends on {job_id}",
                        hint="delete it when that job has ended",
                    )
            for name in names_of(connection, self.tenant_id):
                if any(ref.owner == job_id for ref in name.versions):
                    raise ConflictError(
                        f"the name {name.name!r} serves a version of {job_id}",
                        hint=f"`tinkergym jobs names --remove {name.name}`, or promote another job's version",
                    )
            forget_policies(connection, job_id)
            # `jobs` comes last, because the others refer to it.
            for table in (episodes, events, facts, policy_calls, jobs):
                connection.execute(delete(table).where(table.c.job_id == job_id))

    def events_after(self, job_id: str, seq: int, limit: int = 1000) -> list[Event]:
        """Return the job's events with a greater number than `seq`, in order.

        Raises:
            NotFoundError: The job does not exist or is another tenant's.
        """
        with self._db.read() as connection:
            self._own(connection, job_id)
            rows = connection.execute(
                select(events)
                .where(events.c.job_id == job_id, events.c.seq > seq)
                .order_by(events.c.seq)
                .limit(limit)
            )
            return [event_view(row) for row in rows]

    def policies_of(self, job_id: str) -> dict[str, str]:
        """Return the ids of the policies that a job trains, by agent; "" is the agent of a single policy.

        Raises:
            NotFoundError: The job does not exist or is another tenant's.
        """
        with self._db.read() as connection:
            self._own(connection, job_id)
            return policies_by_agent(connection, job_id)

    def find_policy(self, ref: PolicyRef, *, field: str = "policy") -> ReferredPolicy:
        """Return the policy that a reference names, with its stored versions.

        Raises:
            NotFoundError: It does not exist or is another tenant's; the error has this `field`.
            InvalidRequestError: The job trains several policies, and the reference does not say which.
        """
        with self._db.read() as connection:
            return find_policy(connection, ref, tenant_id=self.tenant_id, field=field)

    def checkpoints(self, job_id: str, agent: str = "") -> list[CheckpointView]:
        """Return the job's checkpoints, oldest first, or those of one of its agents.

        Raises:
            NotFoundError: The job does not exist or is another tenant's.
        """
        with self._db.read() as connection:
            self._own(connection, job_id)
            agents = [agent] if agent else list(policies_by_agent(connection, job_id))
            views = [
                view.model_copy(update={"agent": one})
                for one in agents
                for view in checkpoint_views(connection, job_id, one)
            ]
            return sorted(views, key=lambda view: view.step)

    def data_in_use(self) -> set[str]:
        """Return the names of the data sets that unfinished jobs need."""
        with self._db.read() as connection:
            unfinished = self._unfinished(connection)
        return {data_id for _, spec in unfinished for data_id in spec.datasets.values()}

    def get_job_and_worker(self, job_id: str) -> tuple[JobView, str | None]:
        """Return a job and the worker (a pool id) that holds it now.

        Raises:
            NotFoundError: It does not exist or is another tenant's.
        """
        with self._db.read() as connection:
            row = self._own(connection, job_id)
            return job_view(row), row.worker_id

    def model_and_worker(self, policy: str) -> tuple[str, str | None] | None:
        """Return a policy's base model and the worker that holds it; None if it is not the tenant's.

        Cached until the next commit, so it is cheap to ask for with every request.

        Args:
            policy: The id of the policy or its job, optionally with a version number, as for opponents in
                games. Other references are not supported, because the version they mean changes.

        Raises:
            InvalidRequestError: The job trains several policies, and the reference does not say which.
        """
        return self._db.read_cache.get(
            ("model and worker", self.tenant_id, policy), lambda: self._model_and_worker(policy)
        )

    def _model_and_worker(self, policy: str) -> tuple[str, str | None] | None:
        ref = PolicyRef.find(policy)
        if ref is None or str(ref) != policy or (ref.has_version and ref.version is None):
            return None
        with self._db.read() as connection:
            try:
                found = find_policy(connection, ref, tenant_id=self.tenant_id, field="policy")
            except NotFoundError:
                return None
            return found.policy.model, self._own(connection, found.job_id).worker_id

    def _unfinished(self, connection: Connection) -> list[tuple[str, JobSpec]]:
        """Return the tenant's unfinished jobs by id."""
        rows = connection.execute(
            select(jobs.c.job_id, jobs.c.spec).where(
                jobs.c.tenant_id == self.tenant_id, jobs.c.state.not_in(FINAL_STATES)
            )
        )
        return [(job_id, stored_spec(spec)) for job_id, spec in rows]

    def _own(self, connection: Connection, job_id: str) -> Row[Any]:
        row = job_row(connection, job_id)
        if row is None or row.tenant_id != self.tenant_id:
            raise NotFoundError(f"there is no job {job_id!r}", hint="`tinkergym jobs` lists yours")
        return row
