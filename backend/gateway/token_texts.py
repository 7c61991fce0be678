"""Token ids as the pieces of text that they stand for, one piece per token."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tokenizers import Tokenizer

from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.errors import TinkerGymError
from tinkergym.schema.summaries import TokenTexts

_TOKENIZERS = 8
_LONGEST_CHARACTER = 8
"""Tokens that one character may take; after so many, what there is is shown."""
_UNFINISHED = "\ufffd"


class TokenReader:
    """Tokenizers by model. Thread-safe."""

    def __init__(self, read: Callable[[str], str]) -> None:
        """Read tokenizers from `read`, which returns that of a model as JSON."""
        self._read = read
        self._lock = threading.Lock()
        self._known: BoundedDict[str, Tokenizer] = BoundedDict(_TOKENIZERS)

    def texts(self, model: str, segments: Sequence[Sequence[int]]) -> TokenTexts:
        """Return the pieces of some segments, or why there are none."""
        try:
            tokenizer = self._tokenizer(model)
        except TinkerGymError as error:  # the model is gone
            return TokenTexts(segments=None, why_not=error.message)
        except Exception as error:  # the tokenizer's own, which has no type
            return TokenTexts(segments=None, why_not=f"the tokenizer of {model} cannot be read: {error}")
        return TokenTexts(segments=[pieces(tokenizer, ids) for ids in segments])

    def _tokenizer(self, model: str) -> Tokenizer:
        with self._lock:
            if (known := self._known.get(model)) is None:
                known = self._known[model] = Tokenizer.from_str(self._read(model))
            return known


def pieces(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[str]:
    """Return the text of each token, in its place: some tokenizers drop a space where a text begins.

    The text of a character with several tokens is at its last one.
    """
    found: list[str] = []
    before: list[int] = []
    start, pending = 0, list[int]()
    for token in token_ids:
        pending.append(token)
        text = tokenizer.decode([*before, *pending], skip_special_tokens=False)[start:]
        if text.endswith(_UNFINISHED) and len(pending) < _LONGEST_CHARACTER:
            found.append("")
            continue
        found.append(text)
        before, pending = [token], []
        start = len(tokenizer.decode(before, skip_special_tokens=False))
    if pending:
        found[-1] = tokenizer.decode([*before, *pending], skip_special_tokens=False)[start:]
    return found
