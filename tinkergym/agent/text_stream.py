"""The text of tokens that arrive one after the other, in time that does not grow with it."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

_REPLACED = "\ufffd"
_MOST_HELD = 8
"""More tokens than a character has bytes: what is still no character behind them will not become one."""


class TextStream:
    """The text that each token adds; a character with bytes in several tokens comes with the last of them.

    As `DecodeStream` of `tokenizers`, which decodes all tokens since the last valid character again for each
    token: a policy that samples bytes of no character would make it hold them, and take quadratic time.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Start before the first token."""
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        """The last tokens: some whose text is known, since decoders look at what is before, and new ones."""
        self._known = 0
        """How many of them are not new."""
        self._sent = 0
        """How many characters of their text have been returned."""

    def add(self, token_ids: Sequence[int]) -> str:
        """Return the text that these tokens complete."""
        ids = [*self._ids, *token_ids]
        text = self._decode(ids)
        if len(text) > self._sent and not text.endswith(_REPLACED):
            return self._taken(ids, text, start=self._known)
        if len(token_ids) > 1:
            return "".join([self.add([token]) for token in token_ids])
        self._ids = ids
        is_held = len(ids) - self._known <= _MOST_HELD
        return "" if is_held else self._taken(ids, text, start=len(ids) - _MOST_HELD)

    def _taken(self, ids: list[int], text: str, *, start: int) -> str:
        # At the end there may be a part of a character.
        held = text.endswith(_REPLACED)
        added = text[self._sent : len(text) - held]
        self._ids, self._known = ids[start:], len(ids) - start
        self._sent = len(self._decode(self._ids)) - held
        return added

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False))
