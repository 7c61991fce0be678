"""Episode results not yet covered by a checkpoint: a resumed job replays them instead of playing again."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection, delete, select

from backend.store.database import Database
from backend.store.job_rows import JobLease, fenced
from backend.store.tables import episodes
from tinkergym.schema.episodes import EpisodeResult

_COMPRESSION_LEVEL = 1
"""The fastest level; it already shrinks token ids and logprobs to a third."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEpisode:
    """What is known about a stored result without reading it."""

    sha256: str
    """SHA-256 of its JSON."""
    captured: bytes
    """See `save_episodes`."""


class EpisodeStore:
    """The store's methods for episode results."""

    _db: Database

    def save_episodes(
        self,
        lease: JobLease,
        step: int,
        results: Sequence[EpisodeResult],
        *,
        captured: Sequence[bytes] | None = None,
    ) -> list[Literal["accepted", "duplicate"]]:
        """Store results of one step in one transaction; for a repeated episode id the first result counts.

        Args:
            lease: The job's lease.
            step: The step that the episodes belong to.
            results: The episodes' results.
            captured: For each result the concatenated digests of its turns' completions; `NO_DIGEST` if
                the engine is not known to have returned it. None means that no digest is known.

        Raises:
            LeaseLostError: Another worker has the job, or it ended; nothing was stored.
        """
        # Compressed before the transaction, which others wait for.
        written = [result.model_dump_json().encode() for result in results]
        packed = [zlib.compress(body, _COMPRESSION_LEVEL) for body in written]
        known_tokens = [b""] * len(results) if captured is None else captured
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
            for result, body, blob, tokens in zip(results, written, packed, known_tokens, strict=True):
                if result.episode_id in known:
                    verdicts.append("duplicate")
                    continue
                known.add(result.episode_id)
                verdicts.append("accepted")
                rows.append(
                    {
                        "job_id": lease.job_id,
                        "episode_id": result.episode_id,
                        "step": step,
                        "result": blob,
                        "sha256": hashlib.sha256(body).hexdigest(),
                        "captured": tokens,
                    }
                )
            if rows:
                connection.execute(episodes.insert(), rows)
        return verdicts

    def episodes(self, job_id: str, step: int) -> list[EpisodeResult]:
        """Return the stored results of one step in order of arrival."""
        with self._db.read() as connection:
            blobs = packed_results(connection, job_id, step)
        return [EpisodeResult.model_validate_json(zlib.decompress(blob)) for blob in blobs]

    def stored_episodes(self, job_id: str, step: int) -> dict[str, StoredEpisode]:
        """Return what is known about one step's stored results without reading them, by episode id."""
        with self._db.read() as connection:
            rows = connection.execute(
                select(episodes.c.episode_id, episodes.c.sha256, episodes.c.captured).where(
                    episodes.c.job_id == job_id, episodes.c.step == step
                )
            )
            return {row.episode_id: StoredEpisode(sha256=row.sha256, captured=row.captured) for row in rows}

    def packed_episodes(self, job_id: str, through_step: int) -> Iterator[tuple[int, list[bytes]]]:
        """Yield the stored results up to a step as zlib-compressed JSON, by step and in order of arrival.

        Step by step, because all steps between two checkpoints may not fit into memory.
        """
        of_job = episodes.c.job_id == job_id
        with self._db.read() as connection:
            query = select(episodes.c.step).where(of_job, episodes.c.step <= through_step)
            steps = connection.scalars(query.distinct().order_by(episodes.c.step)).all()
        for step in steps:
            with self._db.read() as connection:
                packed = packed_results(connection, job_id, step)
            yield step, packed

    def discard_episodes(
        self, lease: JobLease, *, through_step: int | None = None, from_step: int | None = None
    ) -> int:
        """Delete results up to a step covered by a checkpoint, or from a step that will be played again.

        Both bounds are inclusive; with both, only the steps between them are deleted.

        Returns:
            The number of deleted results.

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


def packed_results(connection: Connection, job_id: str, step: int) -> list[bytes]:
    """Return one step's stored results as zlib-compressed JSON, in order of arrival."""
    of_step = select(episodes.c.result).where(episodes.c.job_id == job_id, episodes.c.step == step)
    return list(connection.scalars(of_step.order_by(episodes.c.number)))
