"""Stop strings: which sampled token completes one, and the text before it.

Only the text is considered. Token ids stay as they were sampled, including the token that completes the text.
Streams of text end before a stop string in `tinkergym.openai_api.text_pieces`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from tinkergym.agent.text_stream import TextStream
from tinkergym.schema.sampling import SampleRequest


class StopStrings:
    """The stop strings of one request, and its text so far."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        """Start before the first token.

        Args:
            tokenizer: The model's tokenizer.
            stop: At least one text, none of them empty.
        """
        self._tokenizer, self._stop = tokenizer, tuple(stop)
        self._longest = max(map(len, self._stop))
        self._stream = TextStream(tokenizer)
        self._end = ""

    def completed_by(self, token_id: int) -> bool:
        """Add the next token; return whether it completes one of the strings."""
        added = self._stream.add([token_id])
        if not added:
            return False
        text = self._end + added
        # Only this much of earlier text can be part of a string that is completed later.
        self._end = text[-(self._longest - 1) :] if self._longest > 1 else ""
        return any(one in text for one in self._stop)

    def before(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, up to the first of the strings if one is in it."""
        text = str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))
        return text[: min((at for at in map(text.find, self._stop) if at >= 0), default=len(text))]


def stopped_text(stops: StopStrings, token_ids: Sequence[int], stop_ids: Sequence[int]) -> str:
    """Return a completion's text without the stop id or the stop string that ended it."""
    ended_by_id = bool(token_ids) and token_ids[-1] in stop_ids
    return stops.before(token_ids[:-1] if ended_by_id else token_ids)


def stops_of(request: SampleRequest, model_directory: Path | None) -> StopStrings | None:
    """Return the detector of the request's stop strings; None if it has none."""
    if not request.stop or model_directory is None:
        return None
    return StopStrings(model_tokenizer(model_directory), request.stop)


@cache
def model_tokenizer(model_directory: Path) -> Tokenizer:
    """Return the tokenizer of a model, read once."""
    return Tokenizer.from_file(str(model_directory / "tokenizer.json"))
