"""Episode results that no checkpoint covers yet: what a resumed job replays instead of playing it again."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Literal

from sqlalchemy import delete, select

from backend.store.database import Database
from backend.store.records import JobLease, fenced
from backend.store.tables import episodes
from tinkergym.schema.episodes import EpisodeResult

_COMPRESSION_LEVEL = 1
"""The fastest; token ids and logprobs as JSON shrink to a third and the disk has less to sync."""


class EpisodeStore:
    """The part of the service's store that holds episode results."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._db = database
        self._clock = clock

    def save_episodes(
        self, lease: JobLease, step: int, results: Sequence[EpisodeResult]
    ) -> list[Literal["accepted", "duplicate"]]:
        """Keep results of one step, in one transaction; of two results with one episode id the first counts.

        Raises:
            LeaseLostError: Another worker has the job, or it ended; nothing was kept.
        """
        # Compressed before the transaction begins: others wait for its end.
        packed = [zlib.compress(result.model_dump_json().encode(), _COMPRESSION_LEVEL) for result in results]
        verdicts: list[Literal["accepted", "duplicate"]] = []
        with self._db.write() as connection:
            fenced(connection, lease)
            known = set(
                connection.scalars(
                    select(episodes.c.episode_id).where(
                        episodes.c.job_id == lease.job_id, episodes.c.step == step
                    )
                )
            )
            rows = []
            for result, blob in zip(results, packed, strict=True):
                if result.episode_id in known:
                    verdicts.append("duplicate")
                    continue
                known.add(result.episode_id)
                verdicts.append("accepted")
                rows.append(
                    {"job_id": lease.job_id, "episode_id": result.episode_id, "step": step, "result": blob}
                )
            if rows:
                connection.execute(episodes.insert(), rows)
        return verdicts

    def episodes(self, job_id: str, step: int) -> list[EpisodeResult]:
        """Return the kept results of one step, in the order in which they came."""
        with self._db.read() as connection:
            blobs = connection.scalars(
                select(episodes.c.result)
                .where(episodes.c.job_id == job_id, episodes.c.step == step)
                .order_by(episodes.c.number)
            ).all()
        return [EpisodeResult.model_validate_json(zlib.decompress(blob)) for blob in blobs]

    def discard_episodes(
        self, lease: JobLease, *, through_step: int | None = None, from_step: int | None = None
    ) -> int:
        """Drop results up to a step that a checkpoint covers, or from one that is to be played again.

        Both bounds are inclusive; given both, the steps between them go.

        Returns:
            How many were dropped.

        Raises:
            LeaseLostError: Another worker has the job, or it ended.
        """
        assert through_step is not None or from_step is not None
        query = delete(episodes).where(episodes.c.job_id == lease.job_id)
        if through_step is not None:
            query = query.where(episodes.c.step <= through_step)
        if from_step is not None:
            query = query.where(episodes.c.step >= from_step)
        with self._db.write() as connection:
            fenced(connection, lease)
            return connection.execute(query).rowcount
