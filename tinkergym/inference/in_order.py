"""Samples many requests at a time, and yields the completions in the order of the work.

Memory does not grow with the work: at most `ahead` items are open.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tinkergym.agent.sampler import Sampler
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest

Answer = Completion | SampleFailure
Item = TypeVar("Item")

_REFILLED = 4
"""Requests are submitted in portions of this part of all in flight: each may be one over the network."""
_CHECK_SECONDS = 0.5


@dataclass(slots=True, eq=False)
class _Open(Generic[Item]):
    item: Item
    answers: list[Answer | None] = field(default_factory=list)
    missing: int = 0


class InOrder(Generic[Item]):
    """A run over work that comes from an iterator; as a function it takes answers, see `Deliver`.

    Example:
        >>> for row, answers in InOrder(sampler, in_flight=256, ahead=1024).run(work):
        ...     write(row, answers)
    """

    def __init__(
        self, sampler: Sampler, *, in_flight: int, ahead: int, check: Callable[[], None] = lambda: None
    ) -> None:
        """Prepare.

        Args:
            sampler: Samples the requests.
            in_flight: The most requests at a time; a single item may have more.
            ahead: The most items that are open at a time, so that a slow one delays few others.
            check: Called regularly while completions are awaited; may raise.
        """
        self._sampler, self._in_flight, self._ahead, self._check = sampler, in_flight, ahead, check
        self.gone = False
        """Whether the run is over, so that an engine may drop its requests."""
        self._changed = threading.Condition()
        self._places: dict[str, tuple[_Open[Item], int]] = {}
        self._open: deque[_Open[Item]] = deque()

    def run(
        self, work: Iterator[tuple[Item, Sequence[SampleRequest]]]
    ) -> Generator[tuple[Item, list[Answer]], None, None]:
        """Yield each item with the answers to its requests, in order."""
        try:
            yield from self._run(work)
        finally:
            self.gone = True

    def __call__(self, answers: Sequence[Answer]) -> None:
        """Take answers, from any thread."""
        with self._changed:
            for answer in answers:
                opened, place = self._places.pop(answer.request_id)
                opened.answers[place] = answer
                opened.missing -= 1
            self._changed.notify_all()

    def _run(
        self, work: Iterator[tuple[Item, Sequence[SampleRequest]]]
    ) -> Generator[tuple[Item, list[Answer]], None, None]:
        more = True
        while True:
            if more and self._has_room():
                more = self._refill(work)
            if not self._open:
                return
            with self._changed:
                while self._open[0].missing and not (more and self._has_room()):
                    self._changed.wait(_CHECK_SECONDS)
                    self._check()
            while self._open and not self._open[0].missing:
                done = self._open.popleft()
                yield done.item, [answer for answer in done.answers if answer is not None]

    def _has_room(self) -> bool:
        flying = len(self._places)
        return len(self._open) < self._ahead and flying <= self._in_flight - max(
            1, self._in_flight // _REFILLED
        )

    def _refill(self, work: Iterator[tuple[Item, Sequence[SampleRequest]]]) -> bool:
        """Submit a portion; return whether there may be more work."""
        portion: list[SampleRequest] = []
        more = True
        while len(self._open) < self._ahead and len(self._places) < self._in_flight:
            found = next(work, None)
            if found is None:
                more = False
                break
            item, requests = found
            opened = _Open(item, [None] * len(requests), len(requests))
            self._open.append(opened)
            with self._changed:
                self._places.update(
                    {request.request_id: (opened, place) for place, request in enumerate(requests)}
                )
            portion += requests
        if portion:
            self._sampler.submit(portion, self)
        return more
