"""Prompt check: whether a prompt matches the chat template's text of the whole conversation.

The reference is the template rendered once, as by `apply_chat_template`, without a renderer. The two may
differ within the policy's answers, which stay as they were sampled, but nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinkergym.agent.conversation_text import accepts
from tinkergym.agent.document_marks import template_text_of, tokenizer_of
from tinkergym.agent.growth import same_but_for_the_head
from tinkergym.agent.templates import ChatTemplate
from tinkergym.messages import Message, assistant, plain_text, system, user
from tinkergym.schema.views import RendererBundle

_MARK = "tinkergymAnswer"
"""Placeholder for an answer, to find it in the text; no template trims or escapes it."""
_MOST_CLOSING_TOKENS = 4


class TemplateReference:
    """Whole conversations through a model's template and tokenizer."""

    def __init__(self, bundle: RendererBundle) -> None:
        """Read the bundle.

        Raises:
            TemplateError: The template does not compile.
        """
        self._tokenizer: Any = tokenizer_of(bundle)
        self._template = ChatTemplate(
            template_text_of(bundle, self._tokenizer),
            bundle.special_tokens,
            variables=bundle.template_variables,
            day=bundle.template_date,
        )
        self.stop_ids = frozenset(bundle.stop_ids)
        """Token ids that end a completion."""
        specials = {
            token.content: index
            for index, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.special
        }
        self.special_ids = frozenset(specials.values())
        """Ids of special tokens."""
        self.special_texts = texts = sorted(specials, key=len, reverse=True)
        """Their texts, longest first."""
        self.pattern = re.compile("|".join(map(re.escape, texts))) if texts else None
        """Matches special tokens in text."""
        self._knows_system = accepts(self._template, [system("s"), user("u")])

    def text(self, messages: Sequence[Message]) -> str:
        """Return a conversation's text, opened for the next answer.

        A system prompt is added to the first message if the template does not support it.

        Raises:
            TemplateError: The template refuses the conversation.
        """
        if not self._knows_system and messages[0]["role"] == "system":
            messages = [user(f"{messages[0]['content']}\n\n{messages[1]['content']}"), *messages[2:]]
        return self._template.render(messages, add_generation_prompt=True)

    def around(self, messages: Sequence[Message], places: Sequence[int]) -> list[str]:
        """Return the text before, between and after the contents of some answers.

        Raises:
            TemplateError: The template refuses the conversation.
            LookupError: It does not show one of these answers.
        """
        return self._split(messages, places)[0]

    def visible(self, messages: Sequence[Message], places: Sequence[int]) -> list[int]:
        """Return which of some answers the template shows; some show only the newest."""
        marked, marks = self._marked(messages, places)
        text = self.text(marked)
        return [place for place, mark in zip(places, marks, strict=True) if mark in text]

    def ids_of_last(self, messages: Sequence[Message], places: Sequence[int]) -> list[int]:
        """Return the ids of the last of these texts, as they are within the whole conversation."""
        texts, whole = self._split(messages, places)
        begin = len(whole) - len(texts[-1])
        encoding = self._tokenizer.encode(whole, add_special_tokens=False)
        return [
            index for index, (first, _) in zip(encoding.ids, encoding.offsets, strict=True) if first >= begin
        ]

    def without_specials(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages with a letter instead of each special token's text."""
        if self.pattern is None:
            return list(messages)
        return [{"role": m["role"], "content": self.pattern.sub("x", plain_text(m))} for m in messages]

    def shown(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def quotes(self, messages: Sequence[Message]) -> bool:
        """Whether a message contains the text of a special token."""
        return self.pattern is not None and any(self.pattern.search(plain_text(m)) for m in messages)

    def _marked(self, messages: Sequence[Message], places: Sequence[int]) -> tuple[list[Message], list[str]]:
        mark = _MARK
        while any(mark in message["content"] for message in messages):
            mark += "_"
        marks = [f"{mark}{number}." for number in range(len(places))]
        marked = list(messages)
        for place, text in zip(places, marks, strict=True):
            marked[place] = assistant(text)
        return marked, marks

    def _split(self, messages: Sequence[Message], places: Sequence[int]) -> tuple[list[str], str]:
        marked, marks = self._marked(messages, places)
        whole = rest = self.text(marked)
        texts = []
        for number, mark in enumerate(marks):
            text, found, rest = rest.partition(mark)
            if not found:
                raise LookupError(f"the template does not show answer {number + 1}")
            texts.append(text)
        return [*texts, rest], whole


def prompt_fault(
    reference: TemplateReference,
    prompt_ids: Sequence[int],
    history: Sequence[Message],
    *,
    rendered: Sequence[int] = (),
    sampled: Sequence[tuple[int, int, int]] = (),
) -> str:
    """Return where a prompt differs from the template's text of its conversation; "" if nowhere.

    Args:
        reference: The reference of the model.
        prompt_ids: The prompt's token ids.
        history: The conversation before the requested completion.
        rendered: Indices in `history` of answers from before the prompt's segment opened.
        sampled: For each answer in the prompt as it was sampled: its index in `history`, and where its tokens
            begin and end in the prompt.

    Raises:
        TemplateError: The template refuses the conversation.
    """
    try:
        if not sampled:
            return _fault_of_newest(reference, _Piece((), prompt_ids), history, [])
        return _fault_in_segment(reference, prompt_ids, history, rendered, sampled)
    except LookupError as error:
        return str(error)


def _fault_in_segment(
    reference: TemplateReference,
    prompt_ids: Sequence[int],
    history: Sequence[Message],
    rendered: Sequence[int],
    sampled: Sequence[tuple[int, int, int]],
) -> str:
    opened, first = sampled[0][0], sampled[0][1]
    if reference.shown(prompt_ids[:first]) != reference.text(history[:opened]):
        return "before answer 1: not the text with which the segment opened"
    rendered = reference.visible(history[:opened], rendered)
    places = [*rendered, *(place for place, _, _ in sampled)]
    then = reference.around(history[:opened], rendered)
    now = reference.around(history, places)
    ends = [*(start for _, start, _ in sampled[1:]), len(prompt_ids)]
    pieces = [
        _Piece(prompt_ids[start:end], prompt_ids[end:following])
        for (_, start, end), following in zip(sampled, ends, strict=True)
    ]
    mine = [*([text] for text in then), *(piece.texts(reference) for piece in pieces[:-1])]
    for number, (texts, place) in enumerate(zip(mine, places, strict=True)):
        content = plain_text(history[place - 1]).strip()
        if not any(same_but_for_the_head(text, now[number], content, reference.pattern) for text in texts):
            return f"before answer {number + 1}: {_apart(texts[0], now[number])}"
    return _fault_of_newest(reference, pieces[-1], history, places)


@dataclass(frozen=True, slots=True)
class _Piece:
    """The text between two sampled answers, or before the first."""

    answer: Sequence[int]
    """The ids of the answer before it."""
    ids: Sequence[int]

    def closings(self, reference: TemplateReference) -> list[Sequence[int]]:
        """Return which of the answer's last tokens may come from the template, likeliest first."""
        least = 1 if self.answer and self.answer[-1] in reference.stop_ids else 0
        most = min(_MOST_CLOSING_TOKENS, len(self.answer))
        return [self.answer[len(self.answer) - n :] for n in range(least, most + 1)]

    def texts(self, reference: TemplateReference) -> list[str]:
        """Return the text of this piece with each of those before it."""
        return [reference.shown([*closing, *self.ids]) for closing in self.closings(reference)]


def _fault_of_newest(
    reference: TemplateReference, piece: _Piece, history: Sequence[Message], places: Sequence[int]
) -> str:
    """Compare the text after the last answer token by token; earlier parts were compared before."""
    ours = [[*closing, *piece.ids] for closing in piece.closings(reference)]
    text = reference.around(history, places)[-1]
    if not reference.quotes(history[places[-1] + 1 :] if places else history):
        theirs = reference.ids_of_last(history, places)
        if theirs in ours:
            return ""
        return f"newest: {_apart(reference.shown(ours[0]), reference.shown(theirs))}"
    same = [ids for ids in ours if reference.shown(ids) == text]
    if not same:
        return f"newest: {_apart(reference.shown(ours[0]), text)}"
    # Quoted special tokens are spelled with ordinary ones, so only the template's own are special.
    own = reference.around(reference.without_specials(history), places)[-1]
    written = len(reference.pattern.findall(own)) if reference.pattern else 0
    excess = sum(token in reference.special_ids for token in same[0]) - written
    return f"newest: {excess} special tokens too many" if excess else ""


def _apart(ours: str, theirs: str) -> str:
    shared = next(
        (place for place, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
        min(len(ours), len(theirs)),
    )
    return f"ours {ours[shared : shared + 40]!r}, the template's {theirs[shared : shared + 40]!r}"
