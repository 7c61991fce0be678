"""From a conversation to token ids with the answers marked, with the renderer used for sampling.

Training and sampling use the same tokens: the prompt is rendered like an episode's first prompt, each answer
as `AgentLoop` adds it to its ledger, and what follows as a delta.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.conversations import OverlongRowError, RowFaultError, is_trained
from tinkergym.messages import Message, is_unicode, plain_text
from tinkergym.schema.uploaded_data import TokenSequence
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
    before = messages[:last]
    prompt = prompt_tokens(renderer, before)
    if prompt.rewritten and answers == "all" and any(map(is_trained, before)):
        raise RowFaultError(
            "messages: the model's chat template rewrites the past, so each answer has a different "
            "history; give each answer its own row, with answers='last'"
        )
    answer = answer_tokens(renderer, plain_text(messages[last]), f"messages[{last}].content")
    trained = [(len(prompt.token_ids), len(prompt.token_ids) + len(answer))]
    if answers == "all":
        places = (place for place, message in enumerate(before) if message["role"] == "assistant")
        earlier = zip(places, prompt.answers, strict=not prompt.rewritten)
        trained = [*(span for place, span in earlier if is_trained(before[place])), *trained]
    return _sequence(prompt.token_ids + answer, trained, prompt.images)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A conversation up to the point where the policy answers."""

    token_ids: list[int]
    images: list[ImageSpan]
    answers: list[tuple[int, int]]
    """The spans of past answers; none if `rewritten`."""
    rewritten: bool
    """Whether the template changes earlier text, so that no past answer has the tokens that it was sampled
    with."""


def prompt_tokens(renderer: Renderer, messages: Sequence[Message]) -> Prompt:
    """Render a conversation, opened for the policy's next answer, as an episode's turns would.

    Args:
        renderer: The model's renderer.
        messages: With something before each answer, and after the last.

    Raises:
        RowFaultError: A past answer is as `conversation_tokens` refuses.
        TemplateError: The model's template refuses the conversation.
    """
    places = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    ends = [*places, len(messages)]
    replies = [messages[place + 1 : following] for place, following in pairwise(ends)]
    kinds = frozenset(tuple([message["role"] for message in reply]) for reply in replies)
    if replies and not renderer.grows(messages[: places[0]], kinds, len(ends)):
        ids = renderer.start([_for_template(message) for message in messages])
        return Prompt(token_ids=ids, images=renderer.spans(ids, messages), answers=[], rewritten=True)
    ids = renderer.start(messages[: ends[0]])
    images = renderer.spans(ids, messages[: ends[0]])
    answers: list[tuple[int, int]] = []
    for place, reply in zip(places, replies, strict=True):
        answer = answer_tokens(renderer, plain_text(messages[place]), f"messages[{place}].content", reply)
        answers.append((len(ids), len(ids) + len(answer)))
        ids = ids + answer
        delta = renderer.delta(answer, reply)
        assert delta is not None  # The answer was closed as this reply requires.
        images += [
            ImageSpan(sha256=image.sha256, start=image.start + len(ids), end=image.end + len(ids))
            for image in renderer.spans(delta, reply)
        ]
        ids += delta
    return Prompt(token_ids=ids, images=images, answers=answers, rewritten=False)


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
