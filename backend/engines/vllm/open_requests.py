"""Messages that await an answer from the vLLM process, and which of them the process has.

Invariant: an open message has a number, and either holds a place, waits for one, or (a command) needs none.
It leaves once, which frees its place for another tenant's. Bookkeeping only: the caller holds the engine's
lock.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from backend.compute.busy_clock import BusyClock
from backend.engines.failures import deliver_to, failure
from backend.engines.vllm.process import Message
from backend.fairness.fair_places import FairPlaces
from tinkergym.agent.sampler import Deliver, deliver_parts, has_gone
from tinkergym.errors import TinkerGymError
from tinkergym.schema.sampling import CompletionPart, SampleRequest

_log = logging.getLogger(__name__)
_BATCHES_AT_ONCE = 4
"""Batches computed together that the process has at a time; it computes one after the other."""


@dataclass(eq=False, slots=True)
class OpenRequest:
    """A message awaiting its answer: a request, a batch that is computed together, or a command."""

    message: Message
    request: SampleRequest | None = None
    deliver: Deliver | None = None
    batch_of: str | None = None
    """The tenant, if these are requests that are computed together."""
    result: Future[Message] = field(default_factory=Future)
    tries: int = 0
    """How often vLLM died while it had the message."""
    samples: frozenset[int] = field(init=False)
    """Keys of the policies that answer it."""
    dropped: set[int] = field(default_factory=set)
    """Those of them removed since; their results no longer count."""

    def __post_init__(self) -> None:
        alone = [] if self.request is None else [self.message]
        self.samples = frozenset(each["policy"] for each in self.message.get("requests", alone))

    def fail(self, error: TinkerGymError) -> None:
        """Answer with an error; call this without the lock, because a callback may submit another request."""
        if self.request is None or self.deliver is None:
            self.result.set_result({"refused": error})
        else:
            deliver_to(self.deliver, [failure(self.request, error)])


class OpenRequests:
    """All open messages of an engine, by number."""

    def __init__(self, places: int) -> None:
        """Begin without messages.

        Args:
            places: How many requests the process has at a time. vLLM's own queue does not distinguish
                tenants.
        """
        self._numbers = itertools.count(1)
        self._open: dict[int, OpenRequest] = {}
        self._places = FairPlaces(places)
        # Between two batches of one tenant, others have their turn.
        self._batches = FairPlaces(_BATCHES_AT_ONCE, most_of_one=1)
        self._busy = BusyClock()
        self.newest = 0
        """The number of the last message."""

    def __bool__(self) -> bool:
        return bool(self._open)

    @property
    def busy_seconds(self) -> float:
        """Seconds in which at least one message was open."""
        return self._busy.seconds

    def next_number(self) -> int:
        """Return a number that no other message has."""
        return next(self._numbers)

    def add(self, entry: OpenRequest) -> None:
        """Give a message a number, and queue it for a place if it needs one."""
        number = entry.message.setdefault("id", next(self._numbers))
        self._open[number] = entry
        self.newest = number
        self._busy.count(len(self._open))
        if entry.batch_of is not None:
            self._batches.add(number, entry.batch_of)
        elif entry.request is not None:
            self._places.add(number, owner(entry.request))

    def admitted(self) -> list[OpenRequest]:
        """Return the messages that get a place now, for the process."""
        return [self._open[number] for number in (*self._places.admit(), *self._batches.admit())]

    def get(self, number: int) -> OpenRequest | None:
        """Return an open message, if it is still open."""
        return self._open.get(number)

    def remove(self, numbers: Iterable[int]) -> list[OpenRequest]:
        """Remove messages, as far as they are open; the caller answers them."""
        gone = []
        for number in numbers:
            self._places.remove(number)
            self._batches.remove(number)
            if (entry := self._open.pop(number, None)) is not None:
                gone.append(entry)
        self._busy.count(len(self._open))
        return gone

    def remove_all(self) -> list[OpenRequest]:
        """Remove all messages; the caller answers them, and no others will come."""
        gone, self._open = list(self._open.values()), {}
        self._busy.count(0)
        return gone

    def sent(self) -> list[OpenRequest]:
        """Return the messages that the process has, or would have if it was ready."""
        return [entry for number, entry in self._open.items() if self._is_sent(number, entry)]

    def unwanted(self) -> list[int]:
        """Return the messages whose sender is gone, see `Deliver`."""
        return [number for number, entry in self._open.items() if has_gone(entry.deliver)]

    def tried(self, times: int) -> list[int]:
        """Return the messages that the process had when it died, this many times or more."""
        return [number for number, entry in self._open.items() if entry.tries >= times]

    def of_policy(self, key: int) -> dict[int, OpenRequest]:
        """Return the messages that a policy answers."""
        return {number: entry for number, entry in self._open.items() if key in entry.samples}

    def image_hashes(self) -> set[str]:
        """Return the images of all open messages."""
        messages = [entry.message for entry in self._open.values()]
        asked = [one for message in messages for one in message.get("requests", [message])]
        return {image["sha256"] for one in asked for image in one.get("images", [])}

    def _is_sent(self, number: int, entry: OpenRequest) -> bool:
        if entry.batch_of is not None:
            return self._batches.inside(number)
        return entry.request is None or self._places.inside(number)


def owner(request: SampleRequest) -> str:
    """Return the tenant whose places a request takes."""
    return request.seat.owner or f"/{request.policy}"


def call_parts(deliver: Deliver, parts: Sequence[CompletionPart]) -> None:
    """Deliver parts of completions; an error of the callback is logged."""
    try:
        deliver_parts(deliver, parts)
    except Exception:
        _log.exception("a callback for parts of %d completions failed; the engine continues", len(parts))
