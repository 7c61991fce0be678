"""Rows that wait for a slot: those of one job in order; tenants take turns, and within a tenant its jobs.

Whoever has the fewest rows in slots comes first, so that no request waits behind all that another tenant asks
for.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator

from backend.engines.embedded.rows import Row

Line = tuple[str, str]
"""Tenant and policy."""


class WaitingRows:
    """A queue of rows. With one owner and one policy it is first in, first out."""

    def __init__(self) -> None:
        # In the order in which the lines' turns come; never with an empty line.
        self._lines: OrderedDict[Line, deque[Row]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __iter__(self) -> Iterator[Row]:
        for line in self._lines.values():
            yield from line

    @property
    def owners(self) -> set[str]:
        """The tenants that have rows here."""
        return {owner for owner, _ in self._lines}

    def first(self, held: Held) -> Row:
        """Return the row whose turn it is."""
        return self._lines[self._next(held)][0]

    def extend(self, rows: Iterable[Row]) -> None:
        """Add rows behind those of the same line."""
        for row in rows:
            self._lines.setdefault(line_of(row), deque()).append(row)

    def put_back(self, row: Row) -> None:
        """Add a row that is to be the next one of its line."""
        line = line_of(row)
        self._lines.setdefault(line, deque()).appendleft(row)
        self._lines.move_to_end(line, last=False)

    def pop_first(self, held: Held) -> Row:
        """Take out the first row; among equals the next turn is another line's."""
        key = self._next(held)
        line = self._lines[key]
        row = line.popleft()
        if line:
            self._lines.move_to_end(key)
        else:
            del self._lines[key]
        return row

    def drop_answered(self) -> None:
        """Remove the rows that have an answer."""
        for key, line in list(self._lines.items()):
            left = deque(row for row in line if row.answer is None)
            if left:
                self._lines[key] = left
            else:
                del self._lines[key]

    def clear(self) -> None:
        """Remove all."""
        self._lines.clear()

    def _next(self, held: Held) -> Line:
        return min(self._lines, key=lambda line: (held.by_owner[line[0]], held.by_line[line]))


class Held:
    """How many rows have a slot, by tenant and by line."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        lines = [line_of(row) for row in rows]
        self.by_line = Counter(lines)
        self.by_owner = Counter(owner for owner, _ in lines)

    def add(self, row: Row, number: int = 1) -> None:
        """Count a row in, or out with -1."""
        line = line_of(row)
        self.by_line[line] += number
        self.by_owner[line[0]] += number


def line_of(row: Row) -> Line:
    """Return the line in which a row waits."""
    return row.owner, row.policy.name
