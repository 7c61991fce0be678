"""Renderer: messages to a model's token ids, and sampled ids back to text.

Knows a tokenizer and a chat template, not episodes. Needs only `tokenizers` and `jinja2`, so the client, the
service and a worker turn the same messages into the same ids.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer

from tinkergym.agent.conversation_text import ConversationText
from tinkergym.agent.document_marks import document_marks, template_text_of, tokenizer_of
from tinkergym.agent.growth import ASKED, Reply, grows
from tinkergym.agent.image_placeholders import (
    MARK,
    ImageTemplate,
    counts_of,
    expanded,
    hashes_of,
    image_spans,
    with_marks,
)
from tinkergym.agent.templates import ChatTemplate
from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.errors import TemplateError
from tinkergym.messages import Message, Role, plain_text, user
from tinkergym.schema.views import ImageRules, RendererBundle
from tinkergym.trajectory.content_parts import ImageSpan

# Short texts repeat: the first prompt of a group, the boards of a small game. Rendering and tokenizing them
# takes most of a turn's time.
_MOST_REMEMBERED_CHARACTERS = 300
_MOST_REMEMBERED_TEXTS = 4096
_MOST_REMEMBERED_TOOLS = 64
"""Lists of tools: most environments offer the same in each episode."""

_MOST_RENDERERS = 16
"""That a cache keeps. Each has a tokenizer, of up to some ten megabytes."""

TURNS_TRIED = 32
"""Answers in the test conversations for a template; longer ones are tested when they occur."""

_Render = Callable[[Sequence[Message]], str]


class Renderer(ConversationText):
    """Turns messages into token ids without ever re-tokenizing sampled tokens.

    The first prompt is rendered whole; everything later is a *delta*: what the template writes between the
    end of an answer and the start of the next. So a template that rewrites the past, for example by dropping
    old reasoning, cannot change sampled tokens; `prefix_preserving` tells whether it would have.

    Instances may be shared between threads.
    """

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        stop_ids: Sequence[int],
        context_length: int,
        images: ImageRules | None = None,
    ) -> None:
        """Check the template for what the loop needs.

        Args:
            tokenizer: The model's tokenizer.
            template: The model's chat template.
            stop_ids: Token ids that end a completion.
            context_length: Most tokens of prompt and completion together.
            images: How the model's processor writes images; None for a text-only model.

        Raises:
            TemplateError: The template fails on a plain conversation or does not show past answers.
        """
        super().__init__(tokenizer, template if images is None else ImageTemplate(template), stop_ids)
        self.images = images
        """How the model's processor writes images; None for a text-only model."""
        self._own_template = template
        self.context_length = context_length
        """Most tokens of prompt and completion together."""
        self._stops = frozenset(stop_ids)
        self._remembered = lru_cache(maxsize=_MOST_REMEMBERED_TEXTS)(
            lambda texts, render: self._encode([{"role": r, "content": c} for r, c in texts], render)
        )
        self._grown = lru_cache(maxsize=_MOST_REMEMBERED_TEXTS)(self._grows)
        self._with_tools = lru_cache(maxsize=_MOST_REMEMBERED_TOOLS)(self._build_with_tools)
        self._ends: dict[Reply, int] = {}
        self._closing = self._read_closing()
        self._channel = self._read_channel()
        self.prefix_preserving = self._preserves("a") and self._preserves("<think>\nq\n</think>\n\na")
        """Whether the template shows past turns exactly as they were when the policy acted."""
        self.opens_reasoning = self._start([user("u")]).rstrip().endswith("<think>")
        """Whether the prompt ends inside a `<think>` that the completion closes."""

    @classmethod
    def from_bundle(cls, bundle: RendererBundle) -> Renderer:
        """Build the renderer of a model that the service offers."""
        tokenizer = tokenizer_of(bundle)
        return cls(
            tokenizer=tokenizer,
            template=ChatTemplate(
                template_text_of(bundle, tokenizer),
                bundle.special_tokens,
                variables=bundle.template_variables,
                day=bundle.template_date,
            ),
            stop_ids=bundle.stop_ids,
            context_length=bundle.context_length,
            images=bundle.images,
        )

    @property
    def template_variables(self) -> Mapping[str, Any]:
        """The values of the template's own variables, such as `enable_thinking`."""
        return self._own_template.variables

    def with_tools(
        self, tools: Sequence[Mapping[str, Any]], variables: Mapping[str, Any] | None = None, day: str = ""
    ) -> Renderer:
        """Return a renderer whose template shows these functions to the model.

        Args:
            tools: The functions; none leaves those that it shows already.
            variables: Values of the template's variables; they replace its own.
            day: The date that the template writes, such as 2026-11-29; empty leaves its own.

        Raises:
            TemplateError: The template leaves the tools out, does not use a variable, writes no date, or
                fails on them.
        """
        variables = {**self.template_variables, **(variables or {})}
        if not tools and variables == self.template_variables and day in ("", self._own_template.day):
            return self
        return self._with_tools(json.dumps([list(tools), variables, day], ensure_ascii=False))

    def _build_with_tools(self, written: str) -> Renderer:
        tools, variables, day = json.loads(written)
        shown = self._own_template.with_changes(tools=tools or None, variables=variables, day=day)
        if tools and not _differ(
            shown, self._own_template.with_changes(variables=variables, day=day), self.images
        ):
            raise TemplateError(
                "the chat template does not show tools",
                hint="remove them, choose a model whose template shows them, or describe them in the prompt "
                'with ToolCalling(env, tools, syntax="hermes")',
            )
        renderer = Renderer(
            tokenizer=self._tokenizer,
            template=shown,
            stop_ids=self.stop_ids,
            context_length=self.context_length,
            images=self.images,
        )
        renderer._offers_tools = self._offers_tools or bool(tools)
        return renderer

    def start(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a whole conversation, opened for the policy's completion."""
        return list(self._ids(messages, self._start)[0])

    def spans(self, token_ids: Sequence[int], messages: Sequence[Message]) -> list[ImageSpan]:
        """Return the positions of images in ids of `messages` from `start`, `continuation` or `delta`.

        For the tail of such ids, the positions of the last images.
        """
        hashes = hashes_of(messages)
        if not hashes or self.images is None:
            return []
        return image_spans(token_ids, self.images, hashes, counts_of(messages, self.images))

    def continuation(self, messages: Sequence[Message], *, answer_closed: bool) -> list[int]:
        """Return the ids between the end of a sampled answer and the start of the next.

        Args:
            messages: The messages after the answer, usually one from the environment.
            answer_closed: Whether the answer ended with the stop token that the template writes there. If a
                limit cut it off, the ids start by closing it.
        """
        ids, end = self._ids(messages, self._after)
        return list(ids[end:] if answer_closed else ids)

    def delta(self, answer: Sequence[int], messages: Sequence[Message]) -> list[int] | None:
        """Return what the template writes after a sampled answer, without the part that is already sampled.

        Args:
            answer: The sampled ids, including the token that ended it.
            messages: The messages after it.

        Returns:
            None if the answer ended with a stop token that the template does not write here, so that no delta
            gives the template's text. For example, harmony ends the newest turn with `<|return|>` and past
            ones with `<|end|>`.
        """
        ids, end = self._ids(messages, self._after)
        if end and answer[-1] == ids[end - 1] and (end == 1 or tuple(answer[-end:]) == tuple(ids[:end])):
            return list(ids[end:])
        if answer[-1] in self._stops:
            return None
        # A limit may have cut the answer between two tokens that close it.
        begun = next((n for n in range(end - 1, 0, -1) if tuple(answer[-n:]) == tuple(ids[:n])), 0)
        return list(ids[begun:])

    def grows(self, opening: Sequence[Message], replies: frozenset[Reply], turns: int) -> bool:
        """Return whether deltas give the template's text of a conversation.

        Args:
            opening: The first messages.
            replies: The roles of the messages between answers, for each kind that occurred.
            turns: The number of answers in the conversation.
        """
        return self._grown(tuple([message["role"] for message in opening]), replies, turns)

    def rewrites_history(self, messages: Sequence[Message]) -> bool:
        """Whether the template changes earlier text in a conversation that starts like this.

        Some move the system prompt into the newest message; some end past answers with a different token than
        the one at which the policy stops. Other changes within answers do not count: a loop that uses `delta`
        keeps answers as they were sampled.
        """
        with_system = bool(messages) and messages[0]["role"] == "system"
        opening: tuple[Role, ...] = ("system", "user") if with_system else ("user",)
        return not self._grown(opening, frozenset([ASKED]), TURNS_TRIED)

    def encode_answer(self, text: str, before: Sequence[Message] = ()) -> list[int]:
        """Return the ids of an answer that was not sampled, closed as the template closes answers.

        Args:
            text: The answer.
            before: The messages that follow it, for templates in which the next turn's first token closes it.
        """
        # A call names its own channel, if the template has such.
        whole = self._channel in text or (self._shows_calls and self.call_grammar.read(text).calls)
        spoken = text if whole else self._channel + text
        ids = self._encode_text(spoken)
        if not before:
            return ids + self._closing
        following, end = self._ids(before, self._after)
        return ids + list(following[:end] or self._closing)

    def document(self, text: str, *, ended: bool = True) -> list[int]:
        """Return the ids of a text outside any conversation, with the tokens around a document.

        One that is not `ended` is open for more text. It begins as the tokenizer's post-processor begins
        texts, and ends with the `eos_token` where that adds no other end.
        """
        begin, end = document_marks(self._tokenizer)
        end = end or self._encode_text(self._template.special_tokens.get("eos_token", ""))
        own, _ = self._encode([user(text)], lambda messages: str(messages[0]["content"]))
        return [*begin, *own, *(end if ended else ())]

    def decode_answer(self, token_ids: Sequence[int]) -> str:
        """Return the text of sampled ids without the tokens that end it.

        If the template writes answers into a channel, as harmony does, this is the text in that channel.
        Other special tokens stay visible: a garbled answer should look garbled.
        """
        ids = list(token_ids)
        if ids and ids[-1] in self._stops:
            closing = self._closing if ids[-len(self._closing) :] == self._closing else ids[-1:]
            del ids[-len(closing) :]
        text = str(self._tokenizer.decode(ids, skip_special_tokens=False))
        return text.rpartition(self._channel)[2] if self._channel in text and self._channel else text

    @property
    def longest_closing(self) -> int:
        """The most tokens that may end an answer and are not part of its text."""
        return max(1, len(self._closing))

    @property
    def has_channel(self) -> bool:
        """Whether the template writes answers into a channel, so that other text may precede them."""
        return bool(self._channel)

    def _read_closing(self) -> list[int]:
        """Return the ids that end an answer, all through its stop token; none if the template writes none."""
        ids = self._encode_text(self._after_answer([], add_generation_prompt=False))
        end = self._through_stop(ids)
        if end:
            return ids[:end]
        # GLM ends a turn with the token that starts the next.
        ids = self._encode_text(self._after([user("u")]))
        return ids[: self._end_before(ASKED)]

    def _end_before(self, reply: Reply) -> int:
        """Return how many ids close an answer before a reply, up to and including the stop token.

        Only text before the reply's content can close the answer.
        """
        if reply not in self._ends:
            one, other = (
                self._encode_text(self._after([{"role": role, "content": text} for role in reply]))
                for text in ("1 a", "a 1")
            )
            shared = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
            self._ends[reply] = self._through_stop(one[:shared])
        return self._ends[reply]

    def _through_stop(self, ids: Sequence[int]) -> int:
        return next((place + 1 for place, token in enumerate(ids) if token in self._stops), 0)

    def _grows(self, opening: tuple[Role, ...], replies: frozenset[Reply], turns: int) -> bool:
        try:
            if not all(map(self._end_before, replies)):
                return False
        except TemplateError:
            return False
        return grows(
            opening,
            replies,
            turns,
            start=self._start,
            after=self._after,
            specials=self._literal.specials,
            spoken=self._spoken_before,
            closing=self._closing_of_calls,
        )

    def _ids(self, messages: Sequence[Message], render: _Render) -> tuple[Sequence[int], int]:
        """Return the ids of what `render` writes, and how many of them close the answer before it.

        Raises:
            UnsupportedPartError: A message has a part or a character that this model does not support.
        """
        if self.images is not None and not all(map(_without_marks, messages)):
            ids, end = self._encode([with_marks(m) for m in messages], render)
            return expanded(ids, self.images, counts_of(messages, self.images)), end
        characters = 0
        for message in messages:
            if len(message) > 2 or type(message["content"]) is not str:  # with a `name`, or in parts
                return self._encode([{**m, "content": plain_text(m)} for m in messages], render)
            characters += len(message["content"])
        if characters > _MOST_REMEMBERED_CHARACTERS:
            return self._encode(messages, render)
        return self._remembered(tuple([(m["role"], m["content"]) for m in messages]), render)

    def _encode(self, messages: Sequence[Message], render: _Render) -> tuple[Sequence[int], int]:
        if self._literal.quoted(messages):
            ids = self._literal.encode(messages, render)
        else:
            ids = self._encode_text(render(messages))
        return ids, self._end_before(
            tuple([message["role"] for message in messages])
        ) if render == self._after else 0


class RendererCache:
    """The renderers of models and jobs used last: to build one reads a whole tokenizer. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: BoundedDict[tuple[str, str, date], Renderer] = BoundedDict(_MOST_RENDERERS)

    def of(self, bundle: RendererBundle) -> Renderer:
        """Return the renderer of a bundle; blocks while it is built.

        Raises:
            TemplateError: Its template does not work.
        """
        # A template may write the date of the day on which its renderer was built.
        key = bundle.sha256, bundle.template_sha256, date.today()
        with self._lock:
            if (known := self._kept.get(key)) is not None:
                return known
        built = Renderer.from_bundle(bundle)
        with self._lock:
            return self._kept.setdefault(key, built)


def _without_marks(message: Message) -> bool:
    content = message["content"]
    return type(content) is str and MARK not in content


def _differ(one: ChatTemplate, other: ChatTemplate, images: ImageRules | None) -> bool:
    """Whether two templates write different prompts for a plain question."""
    first, second = (
        (template if images is None else ImageTemplate(template)).render(
            [user("u")], add_generation_prompt=True
        )
        for template in (one, other)
    )
    return first != second
