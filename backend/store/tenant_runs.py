"""What a tenant can read about a run besides its events: facts, ledgers and stored episodes."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, select

from backend.store.database import Database
from backend.store.episode_results import packed_results
from backend.store.job_rows import checkpoint_views
from backend.store.kept_episodes import KeptEpisodes
from backend.store.policies import policies_by_agent
from backend.store.stored_facts import FactKind, read_facts
from backend.store.tables import episodes
from tinkergym.schema.certificate import CheckpointFacts, EpisodeFate, StepLedger

_PAGE = 100
"""Number of ledgers read at once."""


class TenantRuns:
    """The part of a tenant's store that shows what happened in a run."""

    _db: Database

    def _own(self, connection: Connection, job_id: str) -> Row[Any]:
        raise NotImplementedError

    def facts(self, job_id: str, kind: FactKind) -> list[bytes]:
        """Return a job's facts of one kind as JSON, by number and attempt.

        Raises:
            NotFoundError: The job does not exist or is another tenant's.
        """
        with self._db.read() as connection:
            self._own(connection, job_id)
            return read_facts(connection, job_id, kind)

    def ledgers(self, job_id: str) -> Iterator[bytes]:
        """Yield the ledger of each recorded step as JSON, in order."""
        after = 0
        while True:
            with self._db.read() as connection:
                self._own(connection, job_id)
                page = read_facts(connection, job_id, "ledger", after=after, limit=_PAGE)
            yield from page
            if len(page) < _PAGE:
                return
            after += _PAGE

    def fates(self, job_id: str, step: int) -> list[EpisodeFate]:
        """Return the outcomes of a recorded step's episodes; none if the step is not recorded.

        Raises:
            NotFoundError: The job does not exist or is another tenant's.
        """
        with self._db.read() as connection:
            self._own(connection, job_id)
            found = read_facts(connection, job_id, "ledger", after=step - 1, limit=1)
        ledgers = [StepLedger.model_validate_json(body) for body in found]
        return [fate for ledger in ledgers if ledger.step == step for fate in ledger.episodes]

    def checkpoint_facts(self, job_id: str) -> list[CheckpointFacts]:
        """Return the checkpoints of all the job's policies, by agent and oldest first."""
        with self._db.read() as connection:
            self._own(connection, job_id)
            return [
                CheckpointFacts(agent=agent, view=view)
                for agent in policies_by_agent(connection, job_id)
                for view in checkpoint_views(connection, job_id, agent)
            ]

    def not_learned(self, job_id: str, recorded: frozenset[int]) -> list[EpisodeFate]:
        """Return the stored episodes of unrecorded steps."""
        with self._db.read() as connection:
            self._own(connection, job_id)
            rows = connection.execute(
                select(episodes.c.episode_id, episodes.c.step, episodes.c.sha256)
                .where(episodes.c.job_id == job_id)
                .order_by(episodes.c.number)
            ).all()
        return [
            EpisodeFate(episode_id=row.episode_id, fate="not_learned", sha256=row.sha256)
            for row in rows
            if row.step not in recorded
        ]

    def stored_episodes(
        self, job_id: str, kept: KeptEpisodes, *, first_step: int = 0, last_step: int | None = None
    ) -> Iterator[bytes]:
        """Yield each stored episode's JSON as it was sent, by step.

        Args:
            job_id: The job's id.
            kept: The job's stored episodes.
            first_step: The first step.
            last_step: The last step; None is the newest.
        """
        for step in self.episode_steps(job_id, kept):
            if step >= first_step and (last_step is None or step <= last_step):
                yield from self.episodes_of_step(job_id, kept, step)

    def episode_steps(self, job_id: str, kept: KeptEpisodes) -> list[int]:
        """Return the steps with stored episodes, in order.

        Raises:
            NotFoundError: The job does not exist or is another tenant's.
        """
        with self._db.read() as connection:
            self._own(connection, job_id)
            query = select(episodes.c.step).where(episodes.c.job_id == job_id).distinct()
            in_rows = set(connection.scalars(query))
        # After the rows: a step moved by a running job is in its file before its rows are deleted.
        return sorted(in_rows.union(kept.steps))

    def episodes_of_step(self, job_id: str, kept: KeptEpisodes, step: int) -> Iterator[bytes]:
        """Yield the JSON of each episode of a step, for a job that is known to be the tenant's."""
        # The rows count as long as they are there. A step may move into its file after the first check.
        for look in (partial(self._rows, job_id), kept.read):
            bodies = look(step)
            first = next(bodies, None)
            if first is not None:
                yield first
                yield from bodies
                return

    def _rows(self, job_id: str, step: int) -> Iterator[bytes]:
        with self._db.read() as connection:
            blobs = packed_results(connection, job_id, step)
        yield from map(zlib.decompress, blobs)
