"""Calls to policies trained by users' own loops: stored, then acknowledged, and kept until a checkpoint.

A checkpoint is named after the last call it covers. A resumed policy repeats the calls after it; results
already returned to clients do not change.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, select, update

from backend.store.database import Database
from backend.store.job_rows import FINAL_STATES, JobLease, fenced, job_row
from backend.store.policies import record_version
from backend.store.tables import jobs, policy_calls
from backend.store.usage import count_tokens
from tinkergym.errors import CheckpointCorruptError, ConflictError, NotFoundError, TooManyRequestsError
from tinkergym.schema.policy_calls import MOST_CALLS_AHEAD, POLICY_CALL, CallResult, PolicyCall

_COMPRESSION_LEVEL = 1
"""Of token ids and logprobs, level 6 takes five times as long to save another eighth."""
_RESULTS_KEPT = 1000
"""Results before the oldest checkpoint that are kept: a client that lost a response asks again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCall:
    """A call to execute."""

    seq: int
    call: PolicyCall
    result: CallResult | None
    """Its earlier result, if it was done before; it is then repeated only for its effect on the policy."""
    bytes: int
    """Its size in the store, until a checkpoint covers it."""


class PolicyCalls:
    """The gateway's methods for calls. The caller has checked the policy's tenant."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def last(self, job_id: str) -> int:
        """Return the number of the newest call; 0 if there are none."""
        with self._db.read() as connection:
            query = select(func.max(policy_calls.c.seq)).where(policy_calls.c.job_id == job_id)
            return connection.scalar(query) or 0

    def add(self, job_id: str, seq: int, call: PolicyCall, *, most_bytes: int = 2**28) -> None:
        """Store a call; storing it again has no effect.

        Args:
            job_id: The policy's job.
            seq: The call's number.
            call: The call.
            most_bytes: Limit for all waiting calls of its tenant, compressed.

        Raises:
            ConflictError: The number belongs to a different call, or the previous call is missing.
            TooManyRequestsError: Too many calls are waiting.
        """
        written = call.model_dump_json().encode()
        sha256 = hashlib.sha256(written).hexdigest()
        packed = zlib.compress(written, _COMPRESSION_LEVEL)
        mine = policy_calls.c.job_id == job_id
        with self._db.write() as connection:
            job_row(connection, job_id)  # One call after the other: each depends on the last.
            known = connection.execute(
                select(policy_calls.c.request_sha256).where(mine, policy_calls.c.seq == seq)
            ).scalar_one_or_none()
            if known == sha256:
                return
            last = connection.scalar(select(func.max(policy_calls.c.seq)).where(mine)) or 0
            if known is not None or seq <= last:
                raise ConflictError(
                    f"{job_id} already has a different call {seq}",
                    hint="only one script at a time can train a policy",
                    field="seq",
                )
            if seq > last + 1:
                raise ConflictError(
                    f"call {seq} arrived before call {last + 1}", hint=f"send {last + 1} next", field="seq"
                )
            ahead = connection.scalar(
                select(func.count()).select_from(policy_calls).where(mine, policy_calls.c.result.is_(None))
            )
            if (ahead or 0) >= MOST_CALLS_AHEAD:
                raise TooManyRequestsError(
                    f"{ahead} calls of {job_id} are waiting", hint="wait for results before sending more"
                )
            waiting = _waiting_bytes(connection, job_id)
            # A single call that is larger is taken: waiting would not make room for it.
            if waiting and waiting + len(packed) > most_bytes:
                raise TooManyRequestsError(
                    f"your calls that wait have {waiting} bytes, and this one {len(packed)}; the limit is "
                    f"{most_bytes}",
                    hint="wait for results before sending more; see limits.calls_bytes",
                )
            connection.execute(
                policy_calls.insert().values(job_id=job_id, seq=seq, request=packed, request_sha256=sha256)
            )

    def result(self, job_id: str, seq: int) -> CallResult | None:
        """Return a call's result; None while it is not done.

        Raises:
            NotFoundError: There is no such call, or its result is no longer kept.
        """
        with self._db.read() as connection:
            row = connection.execute(
                select(policy_calls.c.result).where(
                    policy_calls.c.job_id == job_id, policy_calls.c.seq == seq
                )
            ).one_or_none()
        if row is None:
            raise NotFoundError(f"{job_id} has no call {seq}, or its result is no longer kept", field="seq")
        return _result(row.result)


class PolicyCallStore:
    """The methods by which a policy's worker executes calls."""

    _db: Database

    def next_call(self, job_id: str, after: int) -> StoredCall | None:
        """Return the call after number `after`, if it exists."""
        with self._db.read() as connection:
            row = connection.execute(
                select(policy_calls.c.request, policy_calls.c.result).where(
                    policy_calls.c.job_id == job_id, policy_calls.c.seq == after + 1
                )
            ).one_or_none()
        if row is None:
            return None
        if row.request is None:
            raise CheckpointCorruptError(
                f"call {after + 1} of {job_id} cannot be repeated: the checkpoint that covered it is damaged",
                hint="create another policy from a kept version",
            )
        call = POLICY_CALL.validate_json(zlib.decompress(row.request))
        return StoredCall(seq=after + 1, call=call, result=_result(row.result), bytes=len(row.request))

    def finish_call(self, lease: JobLease, seq: int, result: CallResult, *, tokens: int = 0) -> None:
        """Record a call's result; the first result counts.

        Args:
            lease: The lease of the policy's job.
            seq: The call's number.
            result: Its result.
            tokens: The tokens it trained on, counted once.

        Raises:
            LeaseLostError: Another worker has the policy, or it ended.
        """
        packed = zlib.compress(result.model_dump_json().encode(), _COMPRESSION_LEVEL)
        with self._db.write() as connection:
            row = fenced(connection, lease)
            written = connection.execute(
                update(policy_calls)
                .where(
                    policy_calls.c.job_id == lease.job_id,
                    policy_calls.c.seq == seq,
                    policy_calls.c.result.is_(None),
                )
                .values(result=packed)
            )
            # A call that is repeated after a restart has its result already; its tokens are counted.
            if written.rowcount:
                count_tokens(connection, row, tokens)

    def record_publish(self, lease: JobLease, version: int, weights_sha256: str) -> None:
        """Record a published version; its step is the number of the call that published it.

        Raises:
            LeaseLostError: Another worker has the policy, or it ended.
        """
        with self._db.write() as connection:
            fenced(connection, lease)
            record_version(
                connection,
                lease.job_id,
                version=version,
                train_step=version,
                weights_sha256=weights_sha256,
            )
            connection.execute(
                update(jobs).where(jobs.c.job_id == lease.job_id).values(policy_version=version)
            )

    def forget_calls(self, lease: JobLease, through: int) -> None:
        """Delete what a checkpoint covers: the calls up to number `through`, and old results.

        Raises:
            LeaseLostError: Another worker has the policy, or it ended.
        """
        mine = policy_calls.c.job_id == lease.job_id
        with self._db.write() as connection:
            fenced(connection, lease)
            connection.execute(
                update(policy_calls)
                .where(mine, policy_calls.c.seq <= through, policy_calls.c.request.is_not(None))
                .values(request=None)
            )
            connection.execute(
                delete(policy_calls).where(mine, policy_calls.c.seq <= through - _RESULTS_KEPT)
            )


def _waiting_bytes(connection: Connection, job_id: str) -> int:
    """Return the size of the calls that wait at all unfinished policies of a job's tenant."""
    tenant_id = select(jobs.c.tenant_id).where(jobs.c.job_id == job_id).scalar_subquery()
    waiting = (
        select(func.sum(func.length(policy_calls.c.request)))
        .join(jobs, jobs.c.job_id == policy_calls.c.job_id)
        .where(
            jobs.c.tenant_id == tenant_id,
            jobs.c.state.not_in(FINAL_STATES),
            policy_calls.c.result.is_(None),
        )
    )
    return connection.scalar(waiting) or 0


def _result(packed: bytes | None) -> CallResult | None:
    return None if packed is None else CallResult.model_validate_json(zlib.decompress(packed))
