"""The bytes of single tokens: a tokenizer's text of one replaces what is not a whole character."""

from __future__ import annotations

import re

from tokenizers import Tokenizer

_REPLACED = "\ufffd"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _alphabet() -> dict[str, int]:
    """Return the characters that byte-level tokenizers write for bytes: the printable ones are themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _alphabet()


def token_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """Return the UTF-8 bytes of a token, which may be a part of a character."""
    text = str(tokenizer.decode([token_id], skip_special_tokens=False))
    piece = str(tokenizer.id_to_token(token_id) or "")
    if _REPLACED not in text or _REPLACED in piece:
        return text.encode()
    if found := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(found[1], 16)])
    return bytes(_BYTES[one] for one in piece) if set(piece) <= _BYTES.keys() else text.encode()
