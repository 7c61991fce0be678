"""A dict that holds a bounded amount, for everything that is remembered and may be forgotten."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedDict(MutableMapping[Key, Value]):
    """A dict that drops the entries used longest ago when it holds more than `most`.

    Reading and writing an entry use it; `in` does not. The newest entry stays, even if it alone is too large.
    Not thread-safe: even reading changes the order.
    """

    def __init__(
        self,
        most: int,
        *,
        size: Callable[[Value], int] = lambda _: 1,
        dropped: Callable[[Key, Value], object] | None = None,
    ) -> None:
        """Start empty.

        Args:
            most: The most that it holds, in the unit of `size`: entries by default.
            size: Returns the size of a value, always the same for the same value.
            dropped: Is told of entries that made room.
        """
        self._most, self._size, self._dropped = most, size, dropped
        self._held = 0
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def __getitem__(self, key: Key) -> Value:
        value = self._values[key]
        self._values.move_to_end(key)
        return value

    def __setitem__(self, key: Key, value: Value) -> None:
        if key in self._values:
            del self[key]
        self._values[key] = value
        self._held += self._size(value)
        while self._held > self._most and len(self._values) > 1:
            oldest, old = self._values.popitem(last=False)
            self._held -= self._size(old)
            if self._dropped is not None:
                self._dropped(oldest, old)

    def __delitem__(self, key: Key) -> None:
        self._held -= self._size(self._values.pop(key))

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[Key]:
        """Iterate over the keys, those used longest ago first."""
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def clear(self) -> None:
        """Forget all entries."""
        self._values.clear()
        self._held = 0
