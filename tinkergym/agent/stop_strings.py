"""Stop strings: with which sampled token a text is complete, and what stands before it.

Only the text is looked at. Token ids stay as they were sampled, the token included that completes the text.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class StopStrings:
    """The stop strings of one request, and the text that its tokens make so far."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        """Begin before the first token.

        Args:
            tokenizer: Of the model.
            stop: At least one text, none of them empty.
        """
        self._tokenizer, self._stop = tokenizer, tuple(stop)
        self._longest = max(map(len, self._stop))
        # Decodes one token at a time, and keeps back characters of which some bytes are missing.
        self._stream = DecodeStream(skip_special_tokens=False)
        self._end = ""

    def completed_by(self, token_id: int) -> bool:
        """Take the next token; say whether one of the strings is complete with it."""
        added = self._stream.step(self._tokenizer, token_id)
        if not added:
            return False
        text = self._end + added
        # Of what was looked at before, only so much can be part of a string that is complete later.
        self._end = text[-(self._longest - 1) :] if self._longest > 1 else ""
        return any(one in text for one in self._stop)

    def before(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, up to the first of the strings if one is in it."""
        text = str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))
        return text[: min((at for at in map(text.find, self._stop) if at >= 0), default=len(text))]


def stopped_text(stops: StopStrings, token_ids: Sequence[int], stop_ids: Sequence[int]) -> str:
    """Return what a completion says: without the stop id or the stop string that ended it."""
    ended_by_id = bool(token_ids) and token_ids[-1] in stop_ids
    return stops.before(token_ids[:-1] if ended_by_id else token_ids)
