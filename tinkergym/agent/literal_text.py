"""Literal text: special tokens quoted in messages become ordinary tokens of the same text.

An observation that quotes `<|im_end|>` must not end its own message and continue in another role.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from tinkergym.errors import TemplateError
from tinkergym.messages import Message

_LAST_PRIVATE_CHARACTER = 0x10FFFD

_Render = Callable[[Sequence[Message]], str]


class LiteralText:
    """Encodes the template's text of messages, with special tokens only where the template wrote them.

    The text of a special token, cut in two, is not recognized. So each quoted special token is cut, marked by
    a character that occurs nowhere else, and the parts are encoded separately.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Read the special tokens of a tokenizer."""
        self._tokenizer: Any = tokenizer
        added = [t for t in tokenizer.get_added_tokens_decoder().values() if t.special and t.content]
        texts = sorted((t.content for t in added), key=len, reverse=True)
        self.specials = re.compile("|".join(map(re.escape, texts))) if texts else None
        """Matches special tokens in text; None if there are none."""
        # Some tokenizers add a space at the start of a text, but not after a special token.
        self._before = next((t.content for t in added if not (t.lstrip or t.rstrip or t.single_word)), "")

    def quoted(self, messages: Sequence[Message]) -> bool:
        """Whether a message contains the text of a special token."""
        search = self.specials.search if self.specials is not None else None
        return search is not None and any(search(str(v)) for m in messages for v in m.values())

    def encode(self, messages: Sequence[Message], render: _Render) -> list[int]:
        """Encode the template's text of the messages."""
        used = {character for m in messages for v in m.values() for character in str(v)}
        cut = next(c for n in range(_LAST_PRIVATE_CHARACTER, 0, -1) if (c := chr(n)) not in used)
        first, *others = self._render(messages, render, cut).split(cut)
        ids = list(self._tokenizer.encode(first, add_special_tokens=False).ids)
        for part in others:
            inside = self._tokenizer.encode(self._before + part, add_special_tokens=False).ids
            ids += inside[1:] if self._before else inside
        return ids

    def _render(self, messages: Sequence[Message], render: _Render, cut: str) -> str:
        """Return the template's text with a cut in each special token that a message quotes."""
        text = render([self._with_cuts(message, cut) for message in messages])
        try:
            plain = render(messages)
            if text.replace(cut, "") == plain:
                return text
            # The template sees the cuts: it may shorten texts, or look for special tokens in answers.
            spans = [self._shown(messages, n, plain, render, cut) for n in range(len(messages))]
        except TemplateError:  # It refuses some special tokens, which it does not recognize now.
            return text
        parts, place = [], 0
        for span in sorted(span for span in spans if span is not None):
            parts += [plain[place : span[0]], self._cut(plain[span[0] : span[1]], cut)]
            place = span[1]
        return "".join([*parts, plain[place:]]) if None not in spans else text

    def _shown(
        self, messages: Sequence[Message], number: int, text: str, render: _Render, cut: str
    ) -> tuple[int, int] | None:
        """Return where the template's text shows a message's content; None if that is unclear."""
        marked: Message = {
            **messages[number],
            "content": cut,
        }  # It occurs in no message, and is too short to be shortened.
        before, found, after = render([*messages[:number], marked, *messages[number + 1 :]]).partition(cut)
        end = len(text) - len(after)
        within = found and len(before) <= end and text.startswith(before) and text.endswith(after)
        return (len(before), end) if within else None

    def _with_cuts(self, message: Message, cut: str) -> Message:
        texts = {key: self._cut_within(value, cut) for key, value in message.items()}
        return {**texts, "role": message["role"]}  # type: ignore[typeddict-item]

    def _cut_within(self, value: Any, cut: str) -> Any:
        """Return a text, or what calls of tools are made of, with a cut in each special token's text."""
        if isinstance(value, Mapping):
            return {self._cut(str(key), cut): self._cut_within(one, cut) for key, one in value.items()}
        if isinstance(value, list):
            return [self._cut_within(one, cut) for one in value]
        return self._cut(value, cut) if isinstance(value, str) else value

    def _cut(self, text: str, cut: str) -> str:
        assert self.specials is not None
        parts, place = [], 0
        # The text after a cut may contain another special token, so search one character later.
        while found := self.specials.search(text, place):
            parts.append(text[place : found.start() + 1])
            place = found.start() + 1
        return cut.join([*parts, text[place:]])
