"""The embedded engine's queue: in order within a job, while tenants take turns, and jobs within a tenant.

The tenant with the fewest rows in slots comes first, so no request waits behind everything another tenant
asked for.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator

from backend.engines.embedded.rows import Row

Line = tuple[str, str]
"""Tenant and policy."""


class FairQueue:
    """A queue of rows. With one owner and one policy it is first in, first out."""

    def __init__(self) -> None:
        # Ordered by turn; never contains an empty line.
        self._lines: OrderedDict[Line, deque[Row]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __iter__(self) -> Iterator[Row]:
        for line in self._lines.values():
            yield from line

    @property
    def owners(self) -> set[str]:
        """The tenants with waiting rows."""
        return {owner for owner, _ in self._lines}

    def first(self, held: Held) -> Row:
        """Return the next row."""
        return self._lines[self._next(held)][0]

    def extend(self, rows: Iterable[Row]) -> None:
        """Add rows at the end of their line."""
        for row in rows:
            self._lines.setdefault(line_of(row), deque()).append(row)

    def put_back(self, row: Row) -> None:
        """Add a row at the front of its line."""
        line = line_of(row)
        self._lines.setdefault(line, deque()).appendleft(row)
        self._lines.move_to_end(line, last=False)

    def pop_first(self, held: Held) -> Row:
        """Remove and return the next row; afterwards another line of equal rank comes first."""
        key = self._next(held)
        line = self._lines[key]
        row = line.popleft()
        if line:
            self._lines.move_to_end(key)
        else:
            del self._lines[key]
        return row

    def drop_answered(self) -> None:
        """Remove answered rows."""
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
    """The number of rows in slots, by tenant and by line."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        lines = [line_of(row) for row in rows]
        self.by_line = Counter(lines)
        self.by_owner = Counter(owner for owner, _ in lines)

    def add(self, row: Row, number: int = 1) -> None:
        """Count a row, or remove it with -1."""
        line = line_of(row)
        self.by_line[line] += number
        self.by_owner[line[0]] += number


def line_of(row: Row) -> Line:
    """Return the line of a row."""
    return row.owner, row.policy.name
