"""Growth: whether a chat template only ever appends to a conversation, so that deltas give its whole text.

Tried with made-up conversations, because templates do not declare it: some show only the newest messages,
move the system prompt, or render the second result of a tool differently from the first.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence

from tinkergym.errors import TemplateError
from tinkergym.messages import Message, Role, assistant, plain_text

Reply = tuple[Role, ...]
"""The roles of the messages that come between two answers."""
ASKED: Reply = ("user",)

_LONG = " a long message" * 40
_ANSWER = re.compile(r"tgA\d+z")


def grows(
    opening: Sequence[Role],
    replies: Iterable[Reply],
    turns: int,
    *,
    start: Callable[[Sequence[Message]], str],
    after: Callable[[Sequence[Message]], str],
    specials: re.Pattern[str] | None,
    spoken: Callable[[Sequence[Message], str], Message] = lambda _, text: assistant(text),
    closing: Callable[[Message, str], str] = lambda *_: "",
) -> bool:
    """Return whether a conversation built from deltas has the template's text of the whole.

    Differences inside the policy's answers or right before their content do not count, because the loop keeps
    answers as they were sampled.

    Args:
        opening: The roles of the first messages.
        replies: Every kind of reply that occurs; in the test conversation each follows each other.
        turns: Number of answers in the conversation.
        start: Renders a conversation, opened for the next answer.
        after: Renders what follows an answer, opened for the next one.
        specials: Matches special tokens.
        spoken: Returns an answer with this text that these messages can follow, with calls for one.
        closing: Returns what stands in that answer behind its text.
    """
    kinds = sorted(replies)
    order = [kind for pair in itertools.product(kinds, kinds) for kind in pair]
    numbers = itertools.count()
    first = _messages(opening, numbers)
    grown = [_messages(kind, numbers) for kind in itertools.islice(itertools.cycle(order), turns)]
    whole = list(first)
    closings = [""]
    try:
        for number, reply in enumerate(grown):
            answer = spoken(reply, f"tgA{number}z")
            closings.append(closing(answer, f"tgA{number}z"))
            whole += [answer, *reply]
        expected = [start(first), *map(after, grown)]
        text = start(whole)
    except TemplateError:
        return False
    # A template that leaves out or repeats an earlier answer does not only append.
    if _ANSWER.findall(text) != [f"tgA{number}z" for number in range(turns)]:
        return False
    pieces = _ANSWER.split(text)
    if not all(piece.startswith(own) for piece, own in zip(pieces, closings, strict=True)):
        return False
    *past, last = [piece.removeprefix(own) for piece, own in zip(pieces, closings, strict=True)]
    *deltas, newest = expected
    contents = [plain_text(messages[-1]).strip() for messages in (first, *grown)]
    return last == newest and all(
        same_but_for_the_head(*three, specials) for three in zip(deltas, past, contents, strict=False)
    )


def same_but_for_the_head(delta: str, past: str, content: str, specials: re.Pattern[str] | None) -> bool:
    """Return whether a delta and the template's later text of it differ only at the start of the answer.

    A prompt may end with `<think>`, and a past answer may begin with an empty reasoning or with its channel.

    Args:
        delta: The text before an answer when it was asked for.
        past: The text before the same answer, now that it is one of many.
        content: The content of the last message in it.
        specials: Matches special tokens.
    """
    if delta == past:
        return True
    shared = next(
        (place for place, (a, b) in enumerate(zip(delta, past, strict=False)) if a != b),
        min(len(delta), len(past)),
    )
    place = delta.rfind(content)
    if place < 0 or shared < place + len(content):
        return False
    heads = delta[shared:], past[shared:]
    return "" in heads or specials is None or not any(map(specials.search, heads))


def _messages(roles: Iterable[Role], numbers: Iterable[int]) -> list[Message]:
    return [
        {"role": role, "content": f"tgM{number}{_LONG if number % 3 == 2 else ''} z{number}m"}
        for role, number in zip(roles, numbers, strict=False)
    ]
