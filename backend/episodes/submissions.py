"""Results of episodes: checked, claimed, stored, and only then acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from backend.episodes.job_board import JobBoard
from backend.episodes.open_boards import OpenBoards
from backend.episodes.record_check import images_of, require_sound
from backend.errors import LeaseLostError
from tinkergym.errors import StorageFullError
from tinkergym.schema.episodes import EpisodeResult, SubmitReply, SubmitRequest
from tinkergym.schema.ids import EpisodeId

Verdict = Literal["accepted", "duplicate", "stale"]


@dataclass(frozen=True, slots=True)
class Submissions:
    """Accepts results.

    An acknowledged result is durable, and counts once. It is claimed before it is stored, so that a repeated
    call cannot store it again, and settled afterwards, whether or not it could be stored. Between the two the
    lock is free.
    """

    boards: OpenBoards
    require_images: Callable[[str, Sequence[str]], None]

    def submit(self, request: SubmitRequest, job_id: str) -> SubmitReply:
        """See `Boards.submit`."""
        verdicts: list[Verdict] = ["stale"] * len(request.results)
        batches: dict[str, list[int]] = {}
        for position, result in enumerate(request.results):
            found = EpisodeId.find(result.episode_id)
            if found is not None and job_id in {"", found.job.job_id}:
                batches.setdefault(str(found.job), []).append(position)
        for name, positions in batches.items():
            batch = [request.results[position] for position in positions]
            for position, verdict in zip(positions, self._submit(name, batch), strict=True):
                verdicts[position] = verdict
        return SubmitReply(verdicts=verdicts)

    def _submit(self, name: str, batch: Sequence[EpisodeResult]) -> list[Verdict]:
        stale: list[Verdict] = ["stale"] * len(batch)
        with self.boards.changed:
            board = self.boards.by_name.get(name)
            if board is None:
                return stale
            board.last_contact = self.boards.clock()
            seats = [board.limits_of_seats(result) for result in batch]
        # Before the lock is taken again: long records take milliseconds.
        for result, own in zip(batch, seats, strict=True):
            require_sound(result, board.limits, seats=own)
            self.require_images(board.tenant, images_of(result))
        claims = self._claim(board, batch)
        if claims is None:
            return stale
        verdicts, by_step = claims
        return verdicts if self._store(board, by_step) else stale

    def _claim(
        self, board: JobBoard, batch: Sequence[EpisodeResult]
    ) -> tuple[list[Verdict], dict[int, list[EpisodeResult]]] | None:
        """Claim results that may be stored now, by step; None if the board is closed meanwhile.

        Waits until no other call is storing one of them, which is not durable yet, and until the step that
        made the version which sampled them is recorded: stored without it, the weights that sampled them
        would be unknown later.
        """
        with self.boards.changed:
            if not self.boards.is_open(board):
                return None
            for result in batch:
                board.board.check(result)
            batch = [board.board.marked(result) for result in batch]
            # Before anything is claimed here: two calls waiting for each other's results would wait forever.
            if not self.boards.wait_for(board, lambda: not any(map(board.board.saving, batch))):
                return None
            verdicts = list(board.board.claim_all(batch))
            claimed = [r for r, verdict in zip(batch, verdicts, strict=True) if verdict == "accepted"]
            version = max((board.board.newest_sampled(result) for result in claimed), default=0)
            if claimed and not self.boards.wait_for(board, lambda: board.recorded_step >= version):
                self._settle(board, claimed, stored=False)
                return None
            by_step: dict[int, list[EpisodeResult]] = {}
            for result in claimed:
                by_step.setdefault(board.board.step_of(result), []).append(result)
        return verdicts, by_step

    def _store(self, board: JobBoard, by_step: Mapping[int, Sequence[EpisodeResult]]) -> bool:
        """Store claimed results and settle them; False if the job belongs to another process by now."""
        stored = False
        try:
            for step, results in by_step.items():
                board.save(step, results)
            stored = True
        except LeaseLostError:
            pass  # For the worker the lease is lost like any other.
        except StorageFullError as error:
            board.error = error
            raise
        finally:
            with self.boards.changed:
                self._settle(board, [*chain(*by_step.values())], stored=stored)
        return stored

    def _settle(self, board: JobBoard, claimed: Sequence[EpisodeResult], *, stored: bool) -> None:
        for result in claimed:
            board.board.settle(result, stored=stored)
        self.boards.changed.notify_all()
