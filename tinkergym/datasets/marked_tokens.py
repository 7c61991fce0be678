"""From a conversation to token ids with the answers marked, with the renderer used for sampling.

Training and sampling use the same tokens: the prompt is rendered like an episode's first prompt, each answer
as `AgentLoop` adds it to its ledger, and what follows as a delta.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.conversations import OverlongRowError, RowFaultError, is_trained
from tinkergym.messages import Message, is_unicode, plain_text
from tinkergym.schema.data import TokenSequence
from tinkergym.trajectory.content_parts import MOST_PARTS, ImageSpan
from tinkergym.trajectory.trajectory import MOST_TOKENS

Answers = Literal["all", "last"]
"""Which answers of a conversation are trained on."""

_THINK, _THOUGHT = "<think>", "</think>"


def text_tokens(renderer: Renderer, text: Any) -> TokenSequence:
    """Return plain text in which every token but the first is trained on.

    Raises:
        RowFaultError: It is not text, or too short to train on.
    """
    if not isinstance(text, str) or not is_unicode(text):
        raise RowFaultError(f"text: must be a string of Unicode, not {type(text).__name__}")
    ids = renderer.document(text)
    if not text or len(ids) < 2:
        raise RowFaultError("text: is too short to train on")
    return _sequence(ids, [(1, len(ids))])


def _sequence(
    ids: list[int], trained: list[tuple[int, int]], images: Sequence[ImageSpan] = ()
) -> TokenSequence:
    """Return a sequence within the limits of one.

    Raises:
        OverlongRowError: It has more tokens than any.
        RowFaultError: It has too many images.
    """
    if len(ids) > MOST_TOKENS:
        raise OverlongRowError(len(ids))
    if len(images) > MOST_PARTS:
        raise RowFaultError(f"images: {len(images)}, but a row may have at most {MOST_PARTS}")
    return TokenSequence(token_ids=ids, trained=trained, images=list(images))


def conversation_tokens(
    renderer: Renderer, messages: Sequence[Message], *, answers: Answers = "all"
) -> TokenSequence:
    """Render a conversation up to its last trained answer.

    Args:
        renderer: The model's renderer.
        messages: With at least one answer, and something before each.
        answers: Whether all answers are trained on, or only the last.

    Raises:
        RowFaultError: An answer contains the token that ends answers, or does not close reasoning that the
            prompt has opened.
        TemplateError: The model's template refuses the conversation.
    """
    last = max(index for index, message in enumerate(messages) if is_trained(message))
    messages = messages[: last + 1]
    places = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    replies = [messages[place + 1 : following] for place, following in pairwise(places)]
    kinds = frozenset(tuple([message["role"] for message in reply]) for reply in replies)
    if replies and not renderer.grows(messages[: places[0]], kinds, len(places)):
        return _rendered_anew(renderer, messages, places[-1], answers)
    ids = renderer.start(messages[: places[0]])
    images = renderer.spans(ids, messages[: places[0]])
    trained: list[tuple[int, int]] = []
    for place, reply in zip(places, [*replies, []], strict=True):
        answer = answer_tokens(renderer, plain_text(messages[place]), f"messages[{place}].content", reply)
        trained.append((len(ids), len(ids) + len(answer)))
        ids = ids + answer
        if len(trained) < len(places):
            delta = renderer.delta(answer, reply)
            assert delta is not None  # The answer was closed as this reply requires.
            images += [
                ImageSpan(sha256=image.sha256, start=image.start + len(ids), end=image.end + len(ids))
                for image in renderer.spans(delta, reply)
            ]
            ids += delta
    weighed = [span for place, span in zip(places, trained, strict=True) if is_trained(messages[place])]
    trained = weighed if answers == "all" else trained[-1:]
    return _sequence(ids, trained, images)


def _rendered_anew(
    renderer: Renderer, messages: Sequence[Message], place: int, answers: Answers
) -> TokenSequence:
    """Render the last answer after a history that the template rewrites."""
    if answers == "all" and any(map(is_trained, messages[:place])):
        raise RowFaultError(
            "messages: the model's chat template rewrites the past, so each answer has a different "
            "history; give each answer its own row, with answers='last'"
        )
    ids = renderer.start([_for_template(message) for message in messages[:place]])
    images = renderer.spans(ids, messages[:place])
    answer = answer_tokens(renderer, plain_text(messages[place]), f"messages[{place}].content")
    trained = [(len(ids), len(ids) + len(answer))]
    return _sequence(ids + answer, trained, images)


def _for_template(message: Message) -> Message:
    shown: Any = {key: value for key, value in message.items() if key not in ("weight", "written")}
    return message.get("written") or shown  # type: ignore[return-value]


def comparison_tokens(
    renderer: Renderer, messages: Sequence[Message], chosen: str, rejected: str
) -> list[TokenSequence]:
    """Render a prompt with each of two answers; only the answers are trained on.

    Raises:
        RowFaultError: As `conversation_tokens`.
        TemplateError: As `conversation_tokens`.
    """
    answered: list[list[Message]] = [
        [*messages, {"role": "assistant", "content": text}] for text in (chosen, rejected)
    ]
    return [conversation_tokens(renderer, whole, answers="last") for whole in answered]


def answer_tokens(renderer: Renderer, text: str, field: str, reply: Sequence[Message] = ()) -> list[int]:
    """Return an answer's ids as the policy would have sampled them, with the token that ends it.

    Args:
        renderer: The model's renderer.
        text: The answer.
        field: The field, for errors.
        reply: The messages that follow it, if any: some templates end an answer with the next turn's token.

    Raises:
        RowFaultError: The answer contains that token, or does not fit a prompt that opens reasoning.
    """
    if renderer.opens_reasoning:
        # The prompt already contains the opening tag, and sampled answers begin after it.
        text = (
            text.lstrip().removeprefix(_THINK).removeprefix("\n")
            if text.lstrip().startswith(_THINK)
            else text
        )
        if _THOUGHT not in text:
            raise RowFaultError(
                f"{field}: the model's prompts end inside <think>, and this answer never closes it"
            )
    ids = renderer.encode_answer(text, reply)
    if any(token in renderer.stop_ids for token in ids[:-1]):
        raise RowFaultError(f"{field}: contains the text of a token that ends answers; remove it")
    if not ids:
        raise RowFaultError(f"{field}: gives no token to train on")
    return ids
