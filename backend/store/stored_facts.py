"""Facts about a run, which a job's loop records for its certificate.

A fact is identified by its kind, its number and the attempt that recorded it. Recording it again replaces it,
so repeated work counts once.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection, select

from backend.store.database import Database, write_row
from backend.store.job_rows import JobLease, fenced
from backend.store.tables import facts
from tinkergym.schema.model import WireModel

FactKind = Literal["attempt", "publish", "agreement", "adapter", "step", "ledger"]

_COMPRESSION_LEVEL = 1
"""Level 6 takes three times as long to save another sixth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One recorded fact."""

    kind: FactKind
    number: int
    """The attempt, version or step it describes."""
    attempt: int
    """The attempt that recorded it; 0 if only the last record counts."""
    body: WireModel | bytes
    """The fact as an object, or already as JSON."""
    agent: str = ""

    @property
    def written(self) -> bytes:
        """The body as JSON."""
        return self.body if isinstance(self.body, bytes) else self.body.model_dump_json().encode()


class FactStore:
    """The store's methods for facts."""

    _db: Database

    def add_facts(self, lease: JobLease, seen: Iterable[Fact]) -> None:
        """Store facts.

        Raises:
            LeaseLostError: Another worker has the job, or it ended.
        """
        rows = list(seen)
        if not rows:
            return
        with self._db.write() as connection:
            fenced(connection, lease)
            write_facts(connection, lease.job_id, rows)

    def facts(self, job_id: str, kind: FactKind) -> list[bytes]:
        """Return the facts of one kind as JSON, by number and attempt."""
        with self._db.read() as connection:
            return read_facts(connection, job_id, kind)


def write_facts(connection: Connection, job_id: str, seen: Iterable[Fact]) -> None:
    """Store facts in this transaction."""
    for fact in seen:
        body = zlib.compress(fact.written, _COMPRESSION_LEVEL)
        row = {
            "job_id": job_id,
            "kind": fact.kind,
            "agent": fact.agent,
            "number": fact.number,
            "attempt": fact.attempt,
        }
        write_row(connection, facts, row, {"body": body})


def read_facts(
    connection: Connection, job_id: str, kind: FactKind, *, after: int = -1, limit: int | None = None
) -> list[bytes]:
    """Read the facts of one kind with a number above `after` as JSON, by number and attempt."""
    query = (
        select(facts.c.body)
        .where(facts.c.job_id == job_id, facts.c.kind == kind, facts.c.number > after)
        .order_by(facts.c.number, facts.c.agent, facts.c.attempt)
    )
    rows = connection.scalars(query if limit is None else query.limit(limit))
    return [zlib.decompress(body) for body in rows]
