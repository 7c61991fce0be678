"""Renderer: messages to a model's token ids, and sampled ids back to text.

Knows a tokenizer and a chat template, not episodes. Needs only `tokenizers` and `jinja2`, so the client, the
service and a worker turn the same messages into the same ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

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
from tinkergym.agent.literal_text import LiteralText
from tinkergym.agent.stop_strings import StopStrings
from tinkergym.agent.templates import ChatTemplate
from tinkergym.agent.token_bytes import token_bytes
from tinkergym.errors import TemplateError
from tinkergym.messages import Message, Role, assistant, plain_text, system, user
from tinkergym.schema.views import ImageRules, RendererBundle
from tinkergym.tool_calls.grammar import CallGrammar, grammar_of
from tinkergym.trajectory.content_parts import ImageSpan

# Placeholder for an answer to find out what the template writes after one; no template trims or escapes it.
_ANSWER = "tinkergymAnswer7f3a"
# Short texts repeat: the first prompt of a group, the boards of a small game. Rendering and tokenizing them
# takes most of a turn's time.
_MOST_REMEMBERED_CHARACTERS = 300
_MOST_REMEMBERED_TEXTS = 4096
_MOST_REMEMBERED_TOOLS = 64
"""Lists of tools: most environments offer the same in each episode."""

TURNS_TRIED = 32
"""Answers in the test conversations for a template; longer ones are tested when they occur."""

_Render = Callable[[Sequence[Message]], str]


class Renderer:
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
        self._tokenizer = tokenizer
        self.images = images
        """How the model's processor writes images; None for a text-only model."""
        self._own_template = template
        self._template = template if images is None else ImageTemplate(template)
        self.stop_ids = list(stop_ids)
        """Token ids that end a completion."""
        self.context_length = context_length
        """Most tokens of prompt and completion together."""
        self._stops = frozenset(stop_ids)
        self._literal = LiteralText(tokenizer)
        self._remembered = lru_cache(maxsize=_MOST_REMEMBERED_TEXTS)(self._encode_anew)
        self._grown = lru_cache(maxsize=_MOST_REMEMBERED_TEXTS)(self._grows)
        self._with_tools = lru_cache(maxsize=_MOST_REMEMBERED_TOOLS)(self._build_with_tools)
        self._offers_tools = False
        self._shown: dict[Role, bool] = {}
        self._ends: dict[Reply, int] = {}
        self._knows_system = self._accepts([system("s"), user("u")])
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
        if tools and not self._differ(shown, self._own_template.with_changes(variables=variables, day=day)):
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

    def _differ(self, one: ChatTemplate, other: ChatTemplate) -> bool:
        """Whether two templates write different prompts for a plain question."""
        first, second = (
            (template if self.images is None else ImageTemplate(template)).render(
                [user("u")], add_generation_prompt=True
            )
            for template in (one, other)
        )
        return first != second

    @cached_property
    def call_grammar(self) -> CallGrammar:
        """The template's format of tool calls.

        Raises:
            TemplateError: It omits them, or their format is not supported.
        """
        # Some templates write an empty thought before the calls.
        return grammar_of(lambda calls: self._calls_text(calls).rpartition("</think>")[2])

    def _calls_text(self, calls: Sequence[Mapping[str, Any]]) -> str:
        message = {"role": "assistant", "content": "", "tool_calls": list(calls)}
        return self.answer_text([user("u")], message)

    @property
    def reads_calls(self) -> bool:
        """Whether tools are offered, and calls of them can be parsed from answers."""
        return self._shows_calls

    @cached_property
    def _shows_calls(self) -> bool:
        """Whether tools are offered, and the template supports their calls."""
        if not self._offers_tools:
            return False
        function = {"name": "a_tool", "arguments": {"key": _ANSWER}}
        try:
            text = self._calls_text([{"id": "call00000", "type": "function", "function": function}])
        except TemplateError:
            return False
        return _ANSWER in text

    @cached_property
    def marks(self) -> frozenset[str]:
        """The special tokens that the template writes around the turns of a conversation, as text."""
        talk = [user("u"), assistant("a"), user("v")]
        found = self._literal.specials.findall(self._start(talk)) if self._literal.specials else []
        return frozenset(mark for mark in found if "think>" not in mark)

    @property
    def vocab_size(self) -> int:
        """The vocabulary size, including added tokens."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

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

    def answer_text(self, before: Sequence[Mapping[str, Any]], message: Mapping[str, Any]) -> str:
        """Return what the template writes as an answer, for example a message with `tool_calls`.

        Args:
            before: The conversation before it.
            message: The assistant's message, possibly with keys that only the template knows.

        Raises:
            TemplateError: The template fails on it, or changes the text before it.
        """
        opened = self._template.render(before, add_generation_prompt=True)
        whole = self._template.render([*before, message], add_generation_prompt=False)
        if not whole.startswith(opened):
            raise TemplateError("the chat template does not render this message as an answer")
        text = whole.removeprefix(opened)
        ends = (text.find(self.decode([token])) for token in self.stop_ids)
        end = min((place for place in ends if place >= 0), default=len(text))
        if not text[:end].strip():
            raise TemplateError("the chat template leaves this message out")
        return text[:end]

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

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of any ids with special tokens, for display."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def text_ids(self, text: str) -> list[int]:
        """Return the ids of the beginning of a document, in which special tokens may be written out."""
        return [*document_marks(self._tokenizer)[0], *self._encode_text(text)]

    def text_stream(self) -> Callable[[int], str]:
        """Return a function from a completion's tokens, one by one, to the text that each adds.

        A character that has bytes in several tokens comes with the last of them.
        """
        stream = DecodeStream(skip_special_tokens=False)
        return lambda token: stream.step(self._tokenizer, token) or ""

    @property
    def longest_closing(self) -> int:
        """The most tokens that may end an answer and are not part of its text."""
        return max(1, len(self._closing))

    @property
    def has_channel(self) -> bool:
        """Whether the template writes answers into a channel, so that other text may precede them."""
        return bool(self._channel)

    def bytes_of(self, token_id: int) -> bytes:
        """Return the UTF-8 bytes of a token, which may be a part of a character."""
        return token_bytes(self._tokenizer, token_id)

    def stop_strings(self, stop: Sequence[str]) -> StopStrings:
        """Return a matcher of stop strings for sampled tokens."""
        return StopStrings(self._tokenizer, stop)

    # --- what the template does ---

    def _accepts(self, messages: list[Message]) -> bool:
        try:
            self._template.render(messages, add_generation_prompt=True)
        except TemplateError:
            return False
        return True

    def _after_answer(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        answer = _ANSWER
        while any(answer in str(text) for message in messages for text in message.values()):
            answer += "a"
        spoken = self._spoken_before(messages, answer)
        text = self._template.render(
            [user("u"), spoken, *messages], add_generation_prompt=add_generation_prompt
        )
        _, found, after = text.partition(answer)
        closing = self._closing_of_calls(spoken, answer)  # it is the policy's own
        if not found or not after.startswith(closing):
            raise TemplateError(
                "the chat template does not show past answers of the policy",
                hint="use a template that writes the content of assistant messages",
            )
        return after.removeprefix(closing)

    def _spoken_before(self, messages: Sequence[Message], answer: str) -> Message:
        """Return an answer that these messages can follow: results of tools follow calls, where they can."""
        results = list(takewhile(lambda message: message["role"] == "tool", messages))
        if not results or not self._shows_calls:
            return assistant(answer)
        calls: list[dict[str, Any]] = [
            {
                "id": result.get("tool_call_id", f"call{number:05d}"),
                "type": "function",
                "function": {"name": result.get("name", "a_tool"), "arguments": {"key": ""}},
            }
            for number, result in enumerate(results)
        ]
        calls[-1]["function"]["arguments"]["key"] = answer
        return {"role": "assistant", "content": "", "tool_calls": calls}

    def _read_closing(self) -> list[int]:
        """Return the ids that end an answer, all through its stop token; none if the template writes none."""
        ids = self._encode_text(self._after_answer([], add_generation_prompt=False))
        end = self._through_stop(ids)
        if end:
            return ids[:end]
        # GLM ends a turn with the token that starts the next.
        ids = self._encode_text(self._after([user("u")]))
        return ids[: self._end_before(ASKED)]

    def _read_channel(self) -> str:
        """Return what a past answer has between its header and its content, if it contains special tokens."""
        opened = self._template.render([user("u")], add_generation_prompt=True)
        text = self._template.render([user("u"), assistant(_ANSWER), user("v")], add_generation_prompt=True)
        head = text.partition(_ANSWER)[0]
        channel = head.removeprefix(opened) if head.startswith(opened) else ""
        specials = self._literal.specials
        return channel if specials and specials.search(channel) and "think>" not in channel else ""

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

    def _preserves(self, answer: str) -> bool:
        before = self._template.render([user("u")], add_generation_prompt=True)
        conversation = [user("u"), assistant(answer), user("v")]
        return self._template.render(conversation, add_generation_prompt=True).startswith(before + answer)

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

    def _closing_of_calls(self, spoken: Message, answer: str) -> str:
        """Return what closes the calls of an answer behind this text in them; "" where it makes none."""
        return self.answer_text([user("u")], spoken).partition(answer)[2] if "tool_calls" in spoken else ""

    # --- ids ---

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

    def _encode_anew(
        self, messages: tuple[tuple[Role, str], ...], render: _Render
    ) -> tuple[Sequence[int], int]:
        return self._encode([{"role": role, "content": content} for role, content in messages], render)

    def _start(self, messages: Sequence[Message]) -> str:
        if not self._knows_system and messages and messages[0]["role"] == "system":
            messages = _fold_system(messages)
        self._refuse_hidden(messages[1:])
        return self._template.render(messages, add_generation_prompt=True)

    def _after(self, messages: Sequence[Message]) -> str:
        self._refuse_hidden(messages)
        return self._after_answer(messages, add_generation_prompt=True)

    def _refuse_hidden(self, messages: Sequence[Message]) -> None:
        """Refuse messages that the template would drop, such as tool results or late system prompts."""
        for role in {message["role"] for message in messages} - {"user", "assistant"}:
            if role not in self._shown:
                shown: Message = {"role": role, "content": "tinkergymShown7f3a"}
                text = self._after_answer([shown], add_generation_prompt=False)
                self._shown[role] = "tinkergymShown7f3a" in text
            if not self._shown[role]:
                raise TemplateError(
                    f"the chat template leaves out a message with the role {role} in the conversation",
                    hint="use the role user, or choose a model whose template shows it",
                )

    def _encode_text(self, text: str) -> list[int]:
        # The template writes its own special tokens; the tokenizer must not add more.
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _encode(self, messages: Sequence[Message], render: _Render) -> tuple[Sequence[int], int]:
        if self._literal.quoted(messages):
            ids = self._literal.encode(messages, render)
        else:
            ids = self._encode_text(render(messages))
        return ids, self._end_before(
            tuple([message["role"] for message in messages])
        ) if render == self._after else 0


def _without_marks(message: Message) -> bool:
    content = message["content"]
    return type(content) is str and MARK not in content


def _fold_system(messages: Sequence[Message]) -> list[Message]:
    """Put the system message before the first user message, for templates without a system role."""
    first, *rest = messages
    if rest and rest[0]["role"] == "user":
        opened: Message = {**rest[0], "content": f"{first['content']}\n\n{rest[0]['content']}"}
        return [opened, *rest[1:]]
    return [user(plain_text(first)), *rest]
