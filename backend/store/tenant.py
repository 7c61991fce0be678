"""What one tenant can see and do. Another tenant's job is treated as nonexistent."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, delete, select, update

from backend.store import lifecycle
from backend.store.database import Database, write_row
from backend.store.image_rows import ImageRows
from backend.store.job_rows import (
    FINAL_STATES,
    NO_AGENT,
    append,
    checkpoint_views,
    enter_state,
    event_view,
    job_row,
    job_view,
)
from backend.store.keys import LOCAL_TENANT
from backend.store.policies import (
    add_policy,
    forget_policies,
    names_of,
    policies_by_agent,
    references_of,
)
from backend.store.postgres import DuplicateRowError
from backend.store.references import ReferredPolicy, find_policy
from backend.store.secret_rows import put_secret
from backend.store.served_names import NameRows
from backend.store.tables import checkpoints, episodes, events, facts, jobs, policies, policy_calls
from backend.store.tenant_lists import TenantLists
from backend.store.tenant_runs import TenantRuns
from tinkergym.errors import ConflictError, NotFoundError, PayloadTooLargeError
from tinkergym.schema.events import (
    CheckpointEvent,
    CheckpointView,
    Event,
    JobState,
    StateEvent,
)
from tinkergym.schema.ids import PolicyRef, new_job_id
from tinkergym.schema.jobs.spec import JobSpec, stored_spec
from tinkergym.schema.jobs.view import INSTALLED_PACKS, InstalledPack, JobView

SENT_ADAPTER = "adapter-"
"""Begins the idempotency keys of jobs that keep an adapter which the tenant has sent."""


@dataclass(frozen=True, slots=True)
class _Request:
    """What `create_job` is called with."""

    spec: JobSpec
    packs: Mapping[str, str]
    idempotency_key: str
    sha256: str
    client_packs: Sequence[InstalledPack]


class TenantStore(TenantRuns, TenantLists):
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

    def create_job(
        self,
        spec: JobSpec,
        packs: Mapping[str, str],
        idempotency_key: str = "",
        *,
        request_sha256: str = "",
        client_packs: Sequence[InstalledPack] = (),
    ) -> JobView:
        """Queue a job. Repeating the request with the same key returns the existing job.

        Args:
            spec: The job's settings.
            packs: Versions of the service's packs it uses.
            idempotency_key: The request's key; if empty, a new job is always created.
            request_sha256: Hash of the request; if empty, the specs are compared.
            client_packs: The client's installed packs, if its episodes are played there.

        Raises:
            ConflictError: The key was used for a different request.
        """
        sent = _Request(spec, packs, idempotency_key, request_sha256, client_packs)
        try:
            return self._create_job(sent)
        except DuplicateRowError:  # At the same time, by another process; now it is there to be found.
            return self._create_job(sent)

    def add_adapter(
        self, job_id: str, spec: JobSpec, view: CheckpointView, idempotency_key: str, request_sha256: str
    ) -> JobView:
        """Record an adapter that was made elsewhere: as the policy of a job that has completed.

        Args:
            job_id: From `new_job_id`; the checkpoint is stored under it.
            spec: Whose policy it is.
            view: Its only checkpoint.
            idempotency_key: As for `create_job`.
            request_sha256: As for `create_job`.
        """
        sent = _Request(spec, {}, idempotency_key, request_sha256, ())
        try:
            return self._add_adapter(job_id, sent, view)
        except DuplicateRowError:  # As in `create_job`.
            return self._add_adapter(job_id, sent, view)

    def require_room_for_adapter(self, more: int, most_bytes: int) -> None:
        """Refuse an adapter of `more` bytes if the tenant's would then have more than `most_bytes`.

        Raises:
            PayloadTooLargeError: They would.
        """
        with self._db.read() as connection:
            views = connection.scalars(
                select(checkpoints.c.view)
                .join(policies, policies.c.policy_id == checkpoints.c.policy_id)
                .join(jobs, jobs.c.job_id == policies.c.made_by_job)
                .where(jobs.c.tenant_id == self.tenant_id, jobs.c.idempotency_key.startswith(SENT_ADAPTER))
            ).all()
        used = sum(sum(CheckpointView.model_validate_json(view).files.values()) for view in views)
        if used + more > most_bytes:
            raise PayloadTooLargeError(
                f"adapters of {used} bytes are kept, and with this one of {more} they exceed {most_bytes}",
                hint="delete jobs of adapters that you no longer use, or ask the operator to raise "
                "limits.adapters_bytes",
                field="source",
            )

    def _add_adapter(self, job_id: str, sent: _Request, view: CheckpointView) -> JobView:
        with self._db.write() as connection:
            made = self._insert(connection, sent, job_id)
            if made.job_id != job_id:  # It was sent twice at the same time.
                return made
            policy_id = policies_by_agent(connection, job_id)[NO_AGENT]
            keys = {"policy_id": policy_id, "step": view.step}
            write_row(connection, checkpoints, keys, {"view": view.model_dump_json()})
            append(
                connection,
                job_id,
                made.last_seq,
                self._clock(),
                CheckpointEvent(
                    step=view.step, policy_version=view.policy_version, key=view.key, sha256=view.sha256
                ),
            )
            ended = StateEvent(state=JobState.COMPLETED, reason="the adapter is stored")
            enter_state(connection, self._own(connection, job_id), self._clock(), ended, step=view.step)
            return job_view(self._own(connection, job_id))

    def _create_job(self, sent: _Request) -> JobView:
        with self._db.write() as connection:
            return self._insert(connection, sent, self.new_job_id())

    def _insert(self, connection: Connection, sent: _Request, job_id: str) -> JobView:
        spec, idempotency_key, request_sha256 = sent.spec, sent.idempotency_key, sent.sha256
        written = spec.model_dump_json()
        now = self._clock()
        earlier = self._of_key(connection, idempotency_key)
        if earlier is not None:
            if _was_sent(earlier, request_sha256) or earlier.spec == written:
                return job_view(earlier)
            raise ConflictError(
                f"the Idempotency-Key {idempotency_key!r} was already used for {earlier.job_id}, a "
                f"different request",
                hint="send a new Idempotency-Key with a new request",
                code="key_used",
            )
        connection.execute(
            jobs.insert().values(
                job_id=job_id,
                tenant_id=self.tenant_id,
                idempotency_key=idempotency_key or None,
                request_sha256=request_sha256 or None,
                spec=written,
                model=spec.model,
                other_models=json.dumps(_other_models(spec)),
                packs=json.dumps(dict(sent.packs)),
                client_packs=INSTALLED_PACKS.dump_json(list(sent.client_packs)).decode(),
                state=JobState.QUEUED.value,
                budget=None if spec.budget is None else spec.budget.model_dump_json(),
                created_at=now,
                updated_at=now,
            )
        )
        add_policy(connection, job_id=job_id, tenant_id=self.tenant_id, spec=spec, now=now)
        append(connection, job_id, 0, now, StateEvent(state=JobState.QUEUED))
        return job_view(self._own(connection, job_id))

    def new_job_id(self) -> str:
        """Return an id for a job that does not exist yet."""
        return new_job_id()

    def job_of_request(self, idempotency_key: str, request_sha256: str) -> JobView | None:
        """Return the job that this request created before, or None."""
        with self._db.read() as connection:
            row = self._of_key(connection, idempotency_key)
            return None if row is None or not _was_sent(row, request_sha256) else job_view(row)

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

    def _of_key(self, connection: Connection, idempotency_key: str) -> Row[Any] | None:
        if not idempotency_key:
            return None
        return connection.execute(
            select(jobs).where(jobs.c.tenant_id == self.tenant_id, jobs.c.idempotency_key == idempotency_key)
        ).one_or_none()

    def _own(self, connection: Connection, job_id: str) -> Row[Any]:
        row = job_row(connection, job_id)
        if row is None or row.tenant_id != self.tenant_id:
            raise NotFoundError(f"there is no job {job_id!r}", hint="`tinkergym jobs` lists yours")
        return row


def _other_models(spec: JobSpec) -> list[str]:
    """Return the base models of a job's policies besides its own."""
    return sorted({spec.for_agent(agent).model for agent in spec.trained_agents} - {spec.model})


def _was_sent(row: Row[Any], request_sha256: str) -> bool:
    """Return whether this request created the job."""
    return bool(request_sha256) and row.request_sha256 == request_sha256
