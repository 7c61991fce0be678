"""How a tenant's request becomes a job: once, however often it is sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, literal, select

from backend.store.database import Database, write_row
from backend.store.job_rows import NO_AGENT, append, enter_state, job_view
from backend.store.policies import add_policy, policies_by_agent
from backend.store.postgres import DuplicateRowError
from backend.store.tables import checkpoints, jobs, policies, tenants
from tinkergym.errors import ConflictError, PayloadTooLargeError
from tinkergym.schema.events import CheckpointEvent, CheckpointView, JobState, StateEvent
from tinkergym.schema.ids import new_job_id
from tinkergym.schema.jobs.spec import JobSpec
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


class TenantSubmissions:
    """The part of a tenant's store that creates jobs."""

    _db: Database
    _clock: Callable[[], float]
    tenant_id: str

    def _own(self, connection: Connection, job_id: str) -> Row[Any]:
        raise NotImplementedError

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
        self, job_id: str, spec: JobSpec, view: CheckpointView, sha256: str, *, most_bytes: int
    ) -> JobView:
        """Record an adapter that was made elsewhere, once: as the policy of a job that has completed.

        Args:
            job_id: From `new_job_id`; the checkpoint is stored under it.
            spec: Whose policy it is.
            view: Its only checkpoint.
            sha256: Of what was sent.
            most_bytes: Of all adapters that the tenant has sent.

        Raises:
            PayloadTooLargeError: With this one they would have more.
        """
        sent = _Request(spec, {}, f"{SENT_ADAPTER}{sha256}", sha256, ())
        try:
            return self._add_adapter(job_id, sent, view, most_bytes)
        except DuplicateRowError:  # As in `create_job`.
            return self._add_adapter(job_id, sent, view, most_bytes)

    def require_room_for_adapter(self, more: int, most_bytes: int) -> None:
        """Refuse an adapter of `more` bytes if the tenant's would then have more than `most_bytes`.

        Raises:
            PayloadTooLargeError: They would.
        """
        with self._db.read() as connection:
            self._require_room(connection, more, most_bytes)

    def _require_room(self, connection: Connection, more: int, most_bytes: int) -> None:
        # Clients choose the keys of their own jobs, which therefore say nothing; none has its request's hash.
        views = connection.scalars(
            select(checkpoints.c.view)
            .join(policies, policies.c.policy_id == checkpoints.c.policy_id)
            .join(jobs, jobs.c.job_id == policies.c.made_by_job)
            .where(
                jobs.c.tenant_id == self.tenant_id,
                jobs.c.idempotency_key == literal(SENT_ADAPTER) + jobs.c.request_sha256,
            )
        ).all()
        used = sum(sum(CheckpointView.model_validate_json(view).files.values()) for view in views)
        if used + more > most_bytes:
            raise PayloadTooLargeError(
                f"adapters of {used} bytes are kept, and with this one of {more} they exceed {most_bytes}",
                hint="delete jobs of adapters that you no longer use, or ask the operator to raise "
                "limits.adapters_bytes",
                field="source",
            )

    def _add_adapter(self, job_id: str, sent: _Request, view: CheckpointView, most_bytes: int) -> JobView:
        with self._db.write() as connection:
            # One after the other, so that adapters sent at the same time do not all fit.
            connection.execute(
                select(tenants.c.tenant_id).where(tenants.c.tenant_id == self.tenant_id).with_for_update()
            )
            made = self._insert(connection, sent, job_id)
            if made.job_id != job_id:  # It was sent twice at the same time.
                return made
            self._require_room(connection, sum(view.files.values()), most_bytes)
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

    def _of_key(self, connection: Connection, idempotency_key: str) -> Row[Any] | None:
        if not idempotency_key:
            return None
        return connection.execute(
            select(jobs).where(jobs.c.tenant_id == self.tenant_id, jobs.c.idempotency_key == idempotency_key)
        ).one_or_none()


def _other_models(spec: JobSpec) -> list[str]:
    """Return the base models of a job's policies besides its own."""
    return sorted({spec.for_agent(agent).model for agent in spec.trained_agents} - {spec.model})


def _was_sent(row: Row[Any], request_sha256: str) -> bool:
    """Return whether this request created the job."""
    return bool(request_sha256) and row.request_sha256 == request_sha256
