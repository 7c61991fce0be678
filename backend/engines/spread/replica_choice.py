"""Which replica answers a request: the one that has its session's cache, else one with little to do.

Pure bookkeeping; the caller has a lock.

1. Only replicas that hold the requested version are asked about.
2. The next request of a session goes to the replica that answered the last one, which has the keys and values
   of its prompt, unless that replica is overloaded: more than `CROWDED` times the unanswered requests of the
   least loaded one, and `SLACK` more.
3. Others go to the least loaded. Among those with up to `SLACK` requests more than it, the one that last saw
   a prompt of this owner with the same beginning is preferred.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.schema.sampling import SampleRequest

CROWDED = 2
SLACK = 4
_BEGINNING = 64
"""Tokens of a prompt that are compared."""
_MOST_REMEMBERED = 8192


class ReplicaChoice:
    """Remembers which replica answered sessions and prompts."""

    def __init__(self) -> None:
        self._sessions: BoundedDict[str, str] = BoundedDict(_MOST_REMEMBERED)
        self._prompts: BoundedDict[tuple[str, str, tuple[int, ...]], str] = BoundedDict(_MOST_REMEMBERED)

    def choose(self, request: SampleRequest, loads: Mapping[str, int]) -> str:
        """Return the replica for a request, and remember it.

        Args:
            request: The request.
            loads: Unanswered requests of each replica that may answer it, at least one, by its name; the
                first of the least loaded ones is preferred.
        """
        least = min(loads.values())
        chosen = self._sessions.get(request.session_id, "") if request.session_id else ""
        if loads.get(chosen, inf) > CROWDED * least + SLACK:
            chosen = self._prompts.get(_beginning(request), "")
            if loads.get(chosen, inf) > least + SLACK:
                chosen = min(loads, key=loads.__getitem__)
        if request.session_id:
            self._sessions[request.session_id] = chosen
        self._prompts[_beginning(request)] = chosen
        return chosen


def _beginning(request: SampleRequest) -> tuple[str, str, tuple[int, ...]]:
    return request.seat.owner, request.policy, tuple(request.prompt_ids[:_BEGINNING])
