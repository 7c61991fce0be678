"""Round trip: whether conversations grown turn by turn have the tokens of the chat template's whole text.

The reference is the template rendered once over the finished conversation, as `apply_chat_template` does it.
Within the policy's answers the two may differ - what was sampled stays as it was sampled - but nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from tinkergym.errors import TemplateError
from tinkergym.loop.renderer import Renderer
from tinkergym.loop.templates import ChatTemplate
from tinkergym.messages import Message, assistant, system, user
from tinkergym.wire import RendererBundle

_MARK = "Antwort{}tinkergym"
"""The end of each answer, to find it again in the text; no template trims or escapes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationResult:
    """How one synthetic conversation came out."""

    name: str
    outcome: str
    """`same`, `different`, or `refused` by the template."""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrip:
    """What was found out about a model's renderer."""

    prefix_preserving: bool
    """Whether the template leaves past answers as they were sampled."""
    rewrites_history: bool
    """Whether it moves what was read before, so that the loop opens a segment with each turn."""
    conversations: tuple[ConversationResult, ...]

    @property
    def exact(self) -> bool:
        """Whether no conversation differs outside the policy's answers."""
        return all(result.outcome != "different" for result in self.conversations)


def round_trip(bundle: RendererBundle) -> RoundTrip:
    """Grow synthetic conversations with a model's renderer and compare them with the template's whole text.

    Raises:
        TemplateError: The renderer cannot be built, or the template refuses the plainest conversation.
    """
    renderer = Renderer.from_bundle(bundle)
    reference = _Reference(bundle)
    results = []
    for name, opening, replies, thought in _conversations():
        try:
            detail = _difference(renderer, reference, opening, replies, thought)
            outcome = "different" if detail else "same"
        except TemplateError as error:
            if name == "plain":
                raise
            outcome, detail = "refused", error.message
        results.append(ConversationResult(name=name, outcome=outcome, detail=detail))
    return RoundTrip(
        prefix_preserving=renderer.prefix_preserving,
        rewrites_history=any(
            renderer.rewrites_history(opening) for opening in ([user("u")], [system("s"), user("u")])
        ),
        conversations=tuple(results),
    )


def _conversations() -> Iterator[tuple[str, list[Message], list[list[Message]], str]]:
    """Yield (name, first messages, what comes after each answer, what stands before each answer's mark)."""
    tool: Message = {"role": "tool", "content": '{"result": 46}'}
    yield "plain", [user("What is 2+2?")], [[user("And 3+3?")], [user("Go on.")]], ""
    prompted = [system("Be brief."), user("You are X.\na1 b1\na2 b2")]
    yield "system prompt", prompted, [[user("a1 X\na2 b2")], [user("You win.")]], ""
    thought = "<think>\nLet me see.\n</think>\n\n"
    yield "reasoning", [user("12+34=")], [[user("Wrong.")], [user("56-7=")]], thought
    yield "white space", [user("  a\n\n")], [[user("\n b \t")], [user("c\n")]], ""
    yield "other scripts", [user("Grüße, 世界 👩🏽\u200d🚀")], [[user("مرحبا é e\u0301")], [user("2²")]], ""
    yield "long", [user("x = 1\n" * 200)], [[user("0123456789 " * 100)], [user("end")]], ""
    yield "tool answer", [user("Use the tool.")], [[tool], [user("Thanks.")]], ""
    yield "two messages", [user("Play.")], [[user("You said b2."), user("Your turn.")], [user("End.")]], ""


class _Reference:
    """Whole conversations through the template and the tokenizer, with no renderer between."""

    def __init__(self, bundle: RendererBundle) -> None:
        self._tokenizer: Any = Tokenizer.from_str(bundle.tokenizer_json)
        self._template = ChatTemplate(bundle.chat_template, bundle.special_tokens)

    def text(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        return self._template.render(messages, add_generation_prompt=add_generation_prompt)

    def ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def ids_within(self, text: str, start: int, end: int) -> list[int]:
        """The ids of the tokens that lie wholly between two characters of the text."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        pairs = zip(encoding.ids, encoding.offsets, strict=True)
        return [token for token, (first, last) in pairs if start <= first and last <= end]

    def shown(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


def _difference(
    renderer: Renderer,
    reference: _Reference,
    opening: list[Message],
    replies: list[list[Message]],
    thought: str,
) -> str:
    """Return what differs outside the answers, in words; empty if nothing does."""
    answers = [f"{thought}{_MARK.format(number)}" for number in range(len(replies))]
    history = list(opening)
    for answer, reply in zip(answers, replies, strict=True):
        history += [assistant(answer), *reply]
    if not _knows_system(reference) and opening[0]["role"] == "system":
        # The renderer folds the prompt into the first question; so the reference must, to be one.
        history = [user(f"{history[0]['content']}\n\n{history[1]['content']}"), *history[2:]]
    if renderer.rewrites_history(opening):
        return _compared(renderer.start(history), reference.ids(reference.text(history)), reference, "anew")
    text = reference.text(history)
    header = reference.ids(_generation_prompt(reference, history))
    grown = [renderer.start(opening), *(renderer.continuation(r, answer_closed=False) for r in replies)]
    begin = 0
    for number, ours in enumerate(grown):
        last = number == len(replies)
        end = len(text) if last else text.index(_MARK.format(number), begin)
        theirs = reference.ids_within(text, begin, end)
        where = f"before answer {number + 1}"
        if last:
            if fault := _compared(ours, theirs, reference, where):
                return fault
            break
        # The head of an answer belongs to it: in the past, templates leave out what opens the thinking.
        body = ours[: len(ours) - len(header)] if header and ours[-len(header) :] == header else ours
        if fault := _compared(body, theirs[: len(body)], reference, where):
            return fault
        if header and theirs[len(body) : len(body) + 1] != header[:1]:
            return f"{where}: no answer begins there in the template's text"
        begin = end + len(_MARK.format(number))
    return ""


def _compared(ours: Sequence[int], theirs: Sequence[int], reference: _Reference, where: str) -> str:
    if list(ours) == list(theirs):
        return ""
    shared = next(
        (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
    )
    return (
        f"{where}, from token {shared}: ours {reference.shown(ours[shared : shared + 8])!r}, "
        f"the template's {reference.shown(theirs[shared : shared + 8])!r}"
    )


def _knows_system(reference: _Reference) -> bool:
    try:
        reference.text([system("s"), user("u")])
    except TemplateError:
        return False
    return True


def _generation_prompt(reference: _Reference, messages: Sequence[Message]) -> str:
    opened, closed = (reference.text(messages, add_generation_prompt=flag) for flag in (True, False))
    return opened.removeprefix(closed) if opened.startswith(closed) else ""
