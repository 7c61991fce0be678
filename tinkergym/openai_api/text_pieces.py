"""The text of a completion in pieces, while its tokens arrive.

A piece ends at a safe boundary: never within a character, a stop string, the tokens that end an answer, or a
call of a tool. All pieces together are the text of the whole completion.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinkergym.agent.renderer import Renderer


class TextPieces:
    """The text of one completion so far."""

    def __init__(self, renderer: Renderer, stop: Sequence[str] = (), call_opening: str | None = None) -> None:
        """Start before the first token.

        Args:
            renderer: The policy's.
            stop: The request's stop strings.
            call_opening: How a call of a tool begins; None if no tools are offered. If it is empty,
                nothing is known to be text before the end.
        """
        self._stream = renderer.text_stream()
        self._held: list[int] = []
        self._most_held = renderer.longest_closing - 1
        self._is_held = call_opening == "" or renderer.has_channel
        self._stop = stop
        self._marks = [*stop, *([call_opening] if call_opening else [])]
        self._longest = max(map(len, self._marks), default=0)
        self._strips = call_opening is not None
        self._ended = False
        self._waiting = ""
        self.sent = 0
        """How many characters have been returned."""
        self._known = ""
        """The text so far, if calls are looked for."""

    def add(self, token_ids: Sequence[int]) -> str:
        """Take the next tokens, without one that ends the answer; return the text that is safe by now."""
        self._held += token_ids
        count = max(0, len(self._held) - self._most_held)
        ready, self._held = self._held[:count], self._held[count:]
        if self._is_held:
            return ""
        new = self._stream.add(ready) if ready else ""
        if self._strips:
            self._known += new
        text = self._waiting + new
        safe = 0 if self._ended else self._safe(text)
        self._waiting = text[safe:]
        self.sent += safe
        return text[:safe]

    @property
    def with_calls(self) -> str:
        """The text so far up to a stop string, if it has a call of a tool or what follows one; else empty."""
        if not self._ended:
            return ""
        found = [place for mark in self._stop if (place := self._known.find(mark)) >= 0]
        return self._known[: min(found)] if found else self._known

    def rest(self, whole: str) -> str:
        """Return what is left of the text, given all of it."""
        return whole[self.sent :]

    def _safe(self, text: str) -> int:
        """Return how much of a text is neither a mark, nor behind one, nor its possible beginning."""
        if self._longest:
            found = [place for mark in self._marks if (place := text.find(mark)) >= 0]
            if found:
                self._ended = True
                return self._stripped(text, min(found))
            for length in range(min(self._longest - 1, len(text)), 0, -1):
                if any(mark.startswith(text[-length:]) for mark in self._marks):
                    return self._stripped(text, len(text) - length)
        return self._stripped(text, len(text))

    def _stripped(self, text: str, end: int) -> int:
        # The text before a call has no white space at its end.
        return len(text[:end].rstrip()) if self._strips else end
