"""Conversations as a chat template writes them, before they are token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any

from tokenizers import Tokenizer

from tinkergym.agent.image_placeholders import ImageTemplate
from tinkergym.agent.literal_text import LiteralText
from tinkergym.agent.templates import ChatTemplate
from tinkergym.agent.token_text import TokenText
from tinkergym.errors import TemplateError
from tinkergym.messages import Message, Role, assistant, plain_text, system, user
from tinkergym.tool_calls.grammar import CallGrammar, grammar_of

# Placeholder for an answer to find out what the template writes after one; no template trims or escapes it.
_ANSWER = "tinkergymAnswer7f3a"


class ConversationText(TokenText):
    """What a template writes of a conversation: its start, what follows an answer, and answers themselves.

    What follows an answer does not depend on the conversation before it.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate | ImageTemplate, stop_ids: Sequence[int]
    ) -> None:
        """Use a template.

        Args:
            tokenizer: The model's tokenizer.
            template: The model's chat template.
            stop_ids: Token ids that end a completion.
        """
        super().__init__(tokenizer)
        self._template = template
        self.stop_ids = list(stop_ids)
        """Token ids that end a completion."""
        self._literal = LiteralText(tokenizer)
        self._offers_tools = False
        self._shown: dict[Role, bool] = {}
        self._knows_system = accepts(self._template, [system("s"), user("u")])

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

    def _read_channel(self) -> str:
        """Return what a past answer has between its header and its content, if it contains special tokens."""
        opened = self._template.render([user("u")], add_generation_prompt=True)
        text = self._template.render([user("u"), assistant(_ANSWER), user("v")], add_generation_prompt=True)
        head = text.partition(_ANSWER)[0]
        channel = head.removeprefix(opened) if head.startswith(opened) else ""
        specials = self._literal.specials
        return channel if specials and specials.search(channel) and "think>" not in channel else ""

    def _preserves(self, answer: str) -> bool:
        before = self._template.render([user("u")], add_generation_prompt=True)
        conversation = [user("u"), assistant(answer), user("v")]
        return self._template.render(conversation, add_generation_prompt=True).startswith(before + answer)

    def _closing_of_calls(self, spoken: Message, answer: str) -> str:
        """Return what closes the calls of an answer behind this text in them; "" where it makes none."""
        return self.answer_text([user("u")], spoken).partition(answer)[2] if "tool_calls" in spoken else ""

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


def _fold_system(messages: Sequence[Message]) -> list[Message]:
    """Put the system message before the first user message, for templates without a system role."""
    first, *rest = messages
    if rest and rest[0]["role"] == "user":
        opened: Message = {**rest[0], "content": f"{first['content']}\n\n{rest[0]['content']}"}
        return [opened, *rest[1:]]
    return [user(plain_text(first)), *rest]


def accepts(template: ChatTemplate | ImageTemplate, messages: Sequence[Message]) -> bool:
    """Whether a template renders these messages, opened for a completion."""
    try:
        template.render(messages, add_generation_prompt=True)
    except TemplateError:
        return False
    return True
