"""Hash chains over jobs' event logs: a certificate that is asked for again hashes new events only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.schema.certificate import EMPTY_CHAIN, EventsFacts, chained
from tinkergym.schema.events import Event

_REMEMBERED = 256
_EVENTS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chain:
    head: str = EMPTY_CHAIN
    count: int = 0
    last_seq: int = 0


class EventChains:
    """Chains by job, and by whether paths of the machine are hidden in it. Thread-safe.

    What was written to a log is never changed, so a chain is only ever made longer.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: BoundedDict[tuple[str, bool], _Chain] = BoundedDict(_REMEMBERED)

    def up_to_now(
        self,
        job_id: str,
        *,
        hides: bool,
        read: Callable[[int, int], Sequence[Event]],
        shown: Callable[[Event], Event],
    ) -> EventsFacts:
        """Count and chain a job's events as its tenant is shown them.

        Args:
            job_id: Of the job.
            hides: Whether `shown` hides anything.
            read: Returns the events after a number, at most so many.
            shown: Returns an event as the tenant sees it.
        """
        key = job_id, hides
        with self._lock:
            chain = self._known.get(key, _Chain())
        while page := read(chain.last_seq, _EVENTS_AT_ONCE):
            head = chain.head
            for event in page:
                head = chained(head, shown(event).model_dump_json().encode())
            chain = _Chain(head=head, count=chain.count + len(page), last_seq=page[-1].seq)
            if len(page) < _EVENTS_AT_ONCE:
                break
        with self._lock:
            known = self._known.get(key)
            if known is None or known.last_seq < chain.last_seq:  # another request may have read further
                self._known[key] = chain
        return EventsFacts(count=chain.count, head_sha256=chain.head)
