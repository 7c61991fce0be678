"""Rows that wait for a slot: those of one owner in order, the owners in turn.

So nobody waits behind all that another tenant has asked for.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator

from backend.rollout.engines.rows import Row
from backend.rollout.engines.slot_table import split_session


class WaitingRows:
    """A queue of rows. With one owner it is first in, first out."""

    def __init__(self) -> None:
        # In the order in which the owners' turns come; never with an empty line.
        self._lines: OrderedDict[str, deque[Row]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __iter__(self) -> Iterator[Row]:
        for line in self._lines.values():
            yield from line

    @property
    def first(self) -> Row:
        """The row whose turn it is."""
        return next(iter(self._lines.values()))[0]

    def extend(self, rows: Iterable[Row]) -> None:
        """Add rows behind those of the same owner."""
        for row in rows:
            self._lines.setdefault(_owner(row), deque()).append(row)

    def put_back(self, row: Row) -> None:
        """Add a row that is to be the next one."""
        self._lines.setdefault(_owner(row), deque()).appendleft(row)
        self._lines.move_to_end(_owner(row), last=False)

    def pop_first(self) -> Row:
        """Take out the first row; the next turn is another owner's, if one waits."""
        owner, line = self._lines.popitem(last=False)
        row = line.popleft()
        if line:
            self._lines[owner] = line
        return row

    def drop_answered(self) -> None:
        """Remove the rows that have an answer."""
        for owner, line in list(self._lines.items()):
            left = deque(row for row in line if row.answer is None)
            if left:
                self._lines[owner] = left
            else:
                del self._lines[owner]

    def clear(self) -> None:
        """Remove all."""
        self._lines.clear()


def _owner(row: Row) -> str:
    """Return who asks: the owner that the session names, else the job whose episodes the service plays."""
    return split_session(row.request.session_id)[0] or f"/{row.policy.name}"
