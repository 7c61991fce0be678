"""Data parallelism: one policy trained by several processes, each with the model and a part of the batch.

Each rank is an ordinary learner that computes its part of every call (`rank.py`); this is their owner's
handle, on which the methods of `Learner` are calls to all of them. A rank that dies or hangs ends the group
with a specific error (`rank_group.py`).
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch

from backend.learner.parallel.rank import Rank, RankOptions
from backend.learner.parallel.rank_group import RankGroup
from backend.learner.parallel.rank_process import StartRanks, child_ranks
from backend.learner.sequences import TokenLimits
from backend.vision.pixels import ImageSource
from tinkergym.errors import InvalidRequestError


class DataParallelLearner(RankGroup):
    """Ranks on one machine that train like one `Learner`, whose methods and properties they have.

    Thread-safe: calls for several policies wait for each other, because each call uses all ranks. Every call
    raises RankLostError if a rank died or stopped responding.
    """

    def __init__(
        self,
        model_dir: str | Path,
        *,
        ranks: int,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        micro_batch_tokens: int | None = None,
        threads_per_rank: int = 1,
        silence_seconds: float = 1800.0,
        divide_from: int = 10**8,
        room: int | None = None,
        start_ranks: StartRanks = child_ranks,
        folder: Path | None = None,
        images: ImageSource | None = None,
    ) -> None:
        """Start the ranks and wait until each has loaded the model.

        Args:
            model_dir: As for `Learner`.
            ranks: Number of processes.
            device: See `RankOptions`.
            dtype: As for `Learner`.
            micro_batch_tokens: As for `Learner`, on each rank.
            threads_per_rank: torch threads; a total above the machine's cores slows down every rank.
            silence_seconds: A rank that takes longer for a call counts as lost.
            divide_from: Full-parameter policies with at least this many parameters are divided over the
                ranks. For smaller ones that would save less than 2 GB, but each layer costs some messages.
            room: As for `Learner`, on each rank.
            start_ranks: Starts the processes.
            folder: Where they may put their rendezvous file; None uses the system's temporary folder.
            images: Source of image files for a model with image support; it is sent to each rank.

        Raises:
            UnknownModelError: The model cannot be loaded.
            RankLostError: A rank ended before it was ready.
        """
        if ranks < 1:
            raise InvalidRequestError(f"{ranks} ranks", hint="pass ranks=1 or more", field="ranks")
        super().__init__(silence_seconds=silence_seconds)
        self._meeting = tempfile.TemporaryDirectory(prefix="ranks-", dir=folder)
        options = RankOptions(
            ranks=ranks,
            meeting=f"file://{self._meeting.name}/meeting",
            model_dir=str(model_dir),
            device=device,
            dtype=dtype,
            micro_batch_tokens=micro_batch_tokens,
            threads=threads_per_rank,
            silence_seconds=silence_seconds,
            divide_from=divide_from,
            room=room,
            images=images,
        )
        try:
            self.take(start_ranks(options))
            # Asked for often, also while the ranks are busy.
            self.limits: TokenLimits = self.ask("limits")
            self.model_fingerprint: str = self.ask("model_fingerprint")
        except BaseException:
            self.close()
            raise

    def __getattr__(self, name: str) -> Any:
        """Return a method of `Learner` as a call to all ranks, or the value of one of its properties."""
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(Rank, name)
        return self.ask(name) if isinstance(found, property) else partial(self.ask, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the ranks, after their current call unless that takes long."""
        super().close()
        self._meeting.cleanup()
