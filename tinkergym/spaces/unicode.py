"""All Unicode characters as a sequence and a set without memory use, and texts as indices into it.

Gymnasium's text spaces keep tables of their characters; here there are 1.1 million.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

_SURROGATES = range(0xD800, 0xE000)


class UnicodeCharacters(Sequence[str]):
    """Every Unicode scalar value in order; a sequence and a set that takes no memory."""

    def __len__(self) -> int:
        return 0x110000 - len(_SURROGATES)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        return chr(position if position < _SURROGATES.start else position + len(_SURROGATES))

    def __contains__(self, char: object) -> bool:
        return isinstance(char, str) and len(char) == 1 and ord(char) not in _SURROGATES

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def index(self, value: str, start: int = 0, stop: int | None = None) -> int:
        """Return the index of a character."""
        del start, stop
        if value not in self:
            raise ValueError(f"{value!a} is not a Unicode character")
        code = ord(value)
        return code if code < _SURROGATES.start else code - len(_SURROGATES)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeCharacters)

    def __hash__(self) -> int:
        return hash(UnicodeCharacters)


def to_indices(text: str) -> NDArray[np.int32]:
    """Return the index of each character of a text among all characters.

    Raises:
        ValueError: The text holds a lone surrogate.
    """
    codes = np.frombuffer(text.encode("utf-32-le"), "<u4").astype(np.int32)
    codes[codes >= _SURROGATES.stop] -= len(_SURROGATES)
    return codes


def from_indices(indices: NDArray[Any]) -> str:
    """Return the text for indices among all characters.

    Raises:
        ValueError: An index is out of range.
    """
    codes = np.array(indices, dtype=np.int64)
    if codes.size and not 0 <= codes.min() <= codes.max() < len(UnicodeCharacters()):
        raise ValueError(f"there is no Unicode character at {codes.min()} or {codes.max()}")
    codes[codes >= _SURROGATES.start] += len(_SURROGATES)
    return codes.astype("<u4").tobytes().decode("utf-32-le")


@lru_cache(maxsize=1)
def all_characters() -> str:
    """Return them as one string, built once."""
    return "".join(UnicodeCharacters())
