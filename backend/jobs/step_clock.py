"""How a step's time is spent: wall time, the engine's and the learner's work, and the parts in between."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """One step's time, from the moment its episodes could be leased until those of the next one could."""

    step: float
    sampling: float
    learning: float
    parts: dict[str, float]
    """`time/<part>`; work during the next step's rollout belongs to the step in which it runs."""


class StepClock:
    """Measures one job's steps without gaps between them."""

    def __init__(
        self,
        sampling_busy: Callable[[], float],
        learning_busy: Callable[[], float],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Each function returns seconds that grow monotonically."""
        self._clock, self._sampling_busy, self._learning_busy = clock, sampling_busy, learning_busy
        self._parts: dict[str, float] = defaultdict(float)
        self._mark = self._now()
        self._recent: list[float] = []
        self._begun = False
        """Whether the first step is over and no longer counted."""
        self._paused_at: float | None = None
        self._idle = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the duration of the block to `time/<name>`."""
        begun = self._clock()
        try:
            yield
        finally:
            self._parts[name] += self._clock() - begun

    @contextmanager
    def work(self, name: str) -> Iterator[None]:
        """Count the processor's time that this thread takes for the block as `time/<name>`.

        For work that is done while the next episodes are played: what the thread waits for the interpreter
        then is spent on these.
        """
        begun = time.thread_time()
        try:
            yield
        finally:
            self._parts[name] += time.thread_time() - begun

    def add(self, name: str, seconds: float) -> None:
        """Add seconds measured elsewhere to `time/<name>`."""
        self._parts[name] += seconds

    def lap(self) -> StepSeconds:
        """End this step and begin the next."""
        now = self._now()
        wall, sampling, learning = (after - before for before, after in zip(self._mark, now, strict=True))
        parts = {f"time/{name}": seconds for name, seconds in self._parts.items()}
        self._mark = now
        self._parts.clear()
        if self._paused_at is not None:
            # A pause that goes on is split, so that each step is freed of its own part.
            self.resume()
            self.pause()
        self._recent = [*self._recent[-9:], max(0.0, wall - self._idle)]
        if len(self._recent) == 2 and not self._begun:
            # The first step loads and compiles what the others reuse.
            del self._recent[0]
            self._begun = True
        self._idle = 0.0
        return StepSeconds(step=wall, sampling=sampling, learning=learning, parts=parts)

    def pause(self, already: float = 0.0) -> None:
        """Begin a pause, `already` seconds ago, that does not affect estimates."""
        # What lies before this step has been counted in earlier ones.
        self._paused_at = max(self._mark[0], self._clock() - already)

    def resume(self) -> None:
        """End the pause."""
        if self._paused_at is not None:
            self._idle += self._clock() - self._paused_at
            self._paused_at = None

    def expected(self, steps: int) -> float:
        """Estimate the time of `steps` more steps from the last ten, without their pauses."""
        return steps * sum(self._recent) / max(1, len(self._recent))

    def _now(self) -> tuple[float, float, float]:
        return self._clock(), self._sampling_busy(), self._learning_busy()
