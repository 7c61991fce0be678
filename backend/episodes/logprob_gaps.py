"""How far learner and engine were apart on each trained token, for people who look at an episode.

The learner computes its logprobs anyway. They are kept in memory until the next checkpoint, and then written
into one small file per step: a job that resumes from an earlier checkpoint computes them again. No training
depends on them.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from math import isnan

import numpy as np
import numpy.typing as npt

from backend.store.blobs import Blobs
from backend.store.step_files import StepFiles
from tinkergym.trajectory.trajectory import Segment, Trajectory

_FOLDER = "logprob_gaps"
_MOST_TOKENS = 2**24
"""After so many tokens since the last checkpoint nothing more is kept: 45 MB."""

Gaps = list[list[float | None]]
"""Per segment, one per sampled token in nats: the learner's logprob minus the engine's. None for tokens that
were not trained on."""


def gaps_of(files: Blobs) -> StepFiles:
    """Return the files with the gaps of a job's steps, among the files of the job."""
    return StepFiles(files.below(_FOLDER), ".json.z")


class LogprobGaps:
    """The gaps of the steps since the last checkpoint."""

    def __init__(self) -> None:
        self._steps: dict[int, dict[str, str]] = {}
        """By step and by place, see `_place`: float16, little-endian, in base64."""
        self._tokens = 0

    def add(
        self,
        step: int,
        place: tuple[int, str, int],
        segment: Segment,
        trained: Sequence[bool],
        learner_logprobs: npt.NDArray[np.float32],
    ) -> None:
        """Keep the gaps of one trained sequence.

        Args:
            step: Of the episode.
            place: The episode's index in its step, the agent, and the number of its segment.
            segment: The segment.
            trained: Which of its tokens the learner was given; T.
            learner_logprobs: One per such token, in nats, at the sampling temperature.
        """
        if self._tokens + len(learner_logprobs) > _MOST_TOKENS:
            return
        self._tokens += len(learner_logprobs)
        sampled = np.asarray(segment.loss_mask, dtype=bool)
        engine = np.asarray([one for one in segment.sampling_logprobs if one is not None], dtype=np.float32)
        gaps = np.full(len(engine), np.nan, dtype="<f2")
        with np.errstate(over="ignore"):  # beyond 65,504 nats it is infinite
            own = np.asarray(trained, dtype=bool)[sampled]
            gaps[own] = learner_logprobs - engine[own]
        self._steps.setdefault(step, {})[_place(*place)] = base64.b64encode(gaps.tobytes()).decode()

    def take(self) -> dict[int, bytes]:
        """Return the file of each step, and forget them."""
        steps = {step: zlib.compress(json.dumps(one).encode(), 1) for step, one in self._steps.items()}
        self._steps, self._tokens = {}, 0
        return steps


def read_gaps(files: Blobs, step: int, index: int, seats: Sequence[Trajectory]) -> dict[str, Gaps]:
    """Return the gaps of an episode by agent; agents that were not trained, or not yet, are left out."""
    body = gaps_of(files).read(step)
    known = {} if body is None else json.loads(zlib.decompress(body))
    found: dict[str, Gaps] = {}
    for seat in seats:
        parts = [known.get(_place(index, seat.agent, number)) for number in range(len(seat.segments))]
        if any(parts):
            found[seat.agent] = [_numbers(part or "") for part in parts]
    return found


def _place(index: int, agent: str, segment: int) -> str:
    return json.dumps([index, segment, agent])


def _numbers(part: str) -> list[float | None]:
    gaps: list[float] = np.frombuffer(base64.b64decode(part), dtype="<f2").astype(np.float64).tolist()
    return [None if isnan(one) else float(f"{max(-65504.0, min(65504.0, one)):.3g}") for one in gaps]
