"""Text as token ids, and token ids as text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import Tokenizer

from tinkergym.agent.document_marks import document_marks
from tinkergym.agent.stop_strings import StopStrings
from tinkergym.agent.text_stream import TextStream

_REPLACED = "\ufffd"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _alphabet() -> dict[str, int]:
    """Return the characters that byte-level tokenizers write for bytes: the printable ones are themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _alphabet()


def token_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """Return the UTF-8 bytes of a token, whose text replaces what is not a whole character."""
    text = str(tokenizer.decode([token_id], skip_special_tokens=False))
    piece = str(tokenizer.id_to_token(token_id) or "")
    if _REPLACED not in text or _REPLACED in piece:
        return text.encode()
    if found := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(found[1], 16)])
    return bytes(_BYTES[one] for one in piece) if set(piece) <= _BYTES.keys() else text.encode()


class TokenText:
    """Turns text into a tokenizer's ids and back, whatever the text means. Special tokens stay visible."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Use a tokenizer.

        Args:
            tokenizer: The model's tokenizer.
        """
        self._tokenizer = tokenizer

    @property
    def vocab_size(self) -> int:
        """The vocabulary size, including added tokens."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of any ids with special tokens, for display."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def text_ids(self, text: str) -> list[int]:
        """Return the ids of the beginning of a document, in which special tokens may be written out."""
        return [*document_marks(self._tokenizer)[0], *self._encode_text(text)]

    def text_stream(self) -> TextStream:
        """Return what tells the text of a completion while its tokens arrive."""
        return TextStream(self._tokenizer)

    def bytes_of(self, token_id: int) -> bytes:
        """Return the UTF-8 bytes of a token, which may be a part of a character."""
        return token_bytes(self._tokenizer, token_id)

    def stop_strings(self, stop: Sequence[str]) -> StopStrings:
        """Return a matcher of stop strings for sampled tokens."""
        return StopStrings(self._tokenizer, stop)

    def _encode_text(self, text: str) -> list[int]:
        # The template writes its own special tokens; the tokenizer must not add more.
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
