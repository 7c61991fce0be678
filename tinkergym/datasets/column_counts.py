"""What the columns of some rows hold: types, nulls, equal rows, answers that no text can equal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tinkergym.datasets.layouts import without_columns
from tinkergym.tasks.fingerprint import row_hash

ANSWERS = frozenset({"answer", "answers", "gold", "label", "target", "solution", "expected", "reference"})
"""Columns that a policy's answer is compared with, by their usual names."""

_NUMBERS = frozenset({"integer", "number", "true or false"})


class ColumnCounts:
    """Counts the types of each column, row by row."""

    def __init__(self, ignore: Collection[str] = ()) -> None:
        """Start with no rows; columns to `ignore` are counted, and make no row another."""
        self._ignore = ignore
        self.rows = 0
        self.types: dict[str, Counter[str]] = defaultdict(Counter)
        """By column, how many rows have which type, `null` and `absent` included."""
        self.objects = 0
        """Rows that are objects."""
        self._places: dict[bytes, str] = {}
        """The first row by its content."""
        self.equal: list[tuple[str, str]] = []
        """Each row that repeats another, with the first of them."""
        self._number_places: dict[str, list[str]] = defaultdict(list)

    def add(self, where: str, row: Any) -> None:
        """Count a row.

        Args:
            where: Its place, such as `line 7`.
            row: The row as it was written.
        """
        self.rows += 1
        if not isinstance(row, Mapping):
            return
        self.objects += 1
        for name, value in row.items():
            kind = type_of(value)
            self.types[str(name)][kind] += 1
            if kind in _NUMBERS:
                self._number_places[str(name)].append(where)
        first = self._places.setdefault(_content(without_columns(row, self._ignore)), where)
        if first != where:
            self.equal.append((where, first))

    @property
    def columns(self) -> dict[str, dict[str, int]]:
        """The types of each column, with how many rows lack it."""
        found = {}
        for name, kinds in self.types.items():
            absent = self.objects - kinds.total()
            found[name] = dict(kinds.most_common()) | ({"absent": absent} if absent else {})
        return found

    @property
    def contents(self) -> Mapping[bytes, str]:
        """The place of each row by its content."""
        return self._places

    @property
    def never_equal(self) -> dict[str, list[str]]:
        """Places of rows whose answer is a number, which no text equals, by column.

        A column counts if most of it is text, or if it has the name of an answer.
        """
        return {
            name: places
            for name, places in self._number_places.items()
            if self.types[name]["text"] or name.lower() in ANSWERS
        }


def type_of(value: Any) -> str:
    """Return the type of a value, in the words of JSON."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    for kind, name in ((int, "integer"), (float, "number"), (str, "text"), (bytes, "bytes")):
        if isinstance(value, kind):
            return name
    if isinstance(value, Mapping):
        return "object"
    return "list" if isinstance(value, Sequence) else type(value).__name__


def _content(row: Mapping[str, Any]) -> bytes:
    try:
        return row_hash(row)
    except (TypeError, ValueError, RecursionError):
        return repr(row).encode("utf-8", "surrogatepass")
