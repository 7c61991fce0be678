"""The transformers engine's queue: in order within a job, while tenants take turns, and jobs within a tenant.

The tenant with the fewest requests in slots comes first, so no request waits behind everything another tenant
asked for.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator

from backend.engines.transformers.request_state import RequestState

Line = tuple[str, str]
"""Tenant and policy."""


class FairQueue:
    """A queue of requests. With one owner and one policy it is first in, first out."""

    def __init__(self) -> None:
        # Ordered by turn; never contains an empty line.
        self._lines: OrderedDict[Line, deque[RequestState]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __iter__(self) -> Iterator[RequestState]:
        for line in self._lines.values():
            yield from line

    @property
    def owners(self) -> set[str]:
        """The tenants with waiting requests."""
        return {owner for owner, _ in self._lines}

    def first(self, held: Held) -> RequestState:
        """Return the next request."""
        return self._lines[self._next(held)][0]

    def extend(self, states: Iterable[RequestState]) -> None:
        """Add requests at the end of their line."""
        for state in states:
            self._lines.setdefault(line_of(state), deque()).append(state)

    def put_back(self, state: RequestState) -> None:
        """Add a request at the front of its line."""
        line = line_of(state)
        self._lines.setdefault(line, deque()).appendleft(state)
        self._lines.move_to_end(line, last=False)

    def pop_first(self, held: Held) -> RequestState:
        """Remove and return the next request; afterwards another line of equal rank comes first."""
        key = self._next(held)
        line = self._lines[key]
        state = line.popleft()
        if line:
            self._lines.move_to_end(key)
        else:
            del self._lines[key]
        return state

    def drop_answered(self) -> None:
        """Remove answered requests."""
        for key, line in list(self._lines.items()):
            left = deque(state for state in line if state.answer is None)
            if left:
                self._lines[key] = left
            else:
                del self._lines[key]

    def clear(self) -> None:
        """Remove all."""
        self._lines.clear()

    def _next(self, held: Held) -> Line:
        # `min` returns the first of equals, so the order of the lines decides whose turn it is.
        return min(self._lines, key=lambda line: (held.by_owner[line[0]], held.by_line[line]))


class Held:
    """The number of requests in slots, by tenant and by line."""

    def __init__(self, states: Iterable[RequestState] = ()) -> None:
        lines = [line_of(state) for state in states]
        self.by_line = Counter(lines)
        self.by_owner = Counter(owner for owner, _ in lines)

    def add(self, state: RequestState, number: int = 1) -> None:
        """Count a request, or remove it with -1."""
        line = line_of(state)
        self.by_line[line] += number
        self.by_owner[line[0]] += number


def line_of(state: RequestState) -> Line:
    """Return the line of a request."""
    return state.owner, state.policy.name
