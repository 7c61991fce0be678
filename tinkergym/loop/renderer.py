"""Renderer: messages to a model's token ids and sampled ids back to text.

Knows a tokenizer and a chat template, nothing of episodes. Needs `tokenizers` and `jinja2` only, so the
client, the service and a worker turn the same messages into the same ids.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from tokenizers import Tokenizer

from tinkergym.errors import TemplateError
from tinkergym.loop.templates import ChatTemplate
from tinkergym.messages import Message, Role, assistant, system, user
from tinkergym.wire import RendererBundle

# Stands for an answer while the template is asked what it writes after one; no template trims or escapes it.
_ANSWER = "tinkergymAnswer7f3a"
# Stands for a special token's text inside an observation; see `_encode`.
_LITERAL = "tinkergymLiteral7f3aNo{}End"
_LITERAL_PATTERN = re.compile(r"tinkergymLiteral7f3aNo(\d+)End")
# Short texts come again: the first prompt of a group, the boards of a small game. Rendering and tokenising
# them costs more than all else in a turn.
_MOST_REMEMBERED_CHARACTERS = 300
_MOST_REMEMBERED_TEXTS = 4096

_Render = Callable[[Sequence[Message]], str]


class Renderer:
    """Turns messages into token ids so that what was sampled is never tokenised again.

    The first prompt is rendered whole; everything later is a *delta*: what the template writes between the
    end of an answer and the start of the next. So a template that rewrites the past (dropping old thinking,
    say) cannot touch tokens that were sampled; `prefix_preserving` tells whether it would have.

    Instances may be shared between threads.
    """

    def __init__(
        self, *, tokenizer: Tokenizer, template: ChatTemplate, stop_ids: Sequence[int], context_length: int
    ) -> None:
        """Check the template against what the loop needs of it.

        Raises:
            TemplateError: The template fails on a plain conversation or does not show past answers.
        """
        self._tokenizer = tokenizer
        self._template = template
        self.stop_ids = list(stop_ids)
        """Token ids that end an answer."""
        self.context_length = context_length
        """Most tokens of prompt and answer together."""
        specials = [t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special]
        self._specials = re.compile("|".join(map(re.escape, specials))) if specials else None
        self._literal_tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._literal_tokenizer.encode_special_tokens = True
        self._remembered = lru_cache(maxsize=_MOST_REMEMBERED_TEXTS)(self._encode_anew)
        self._shown: dict[Role, bool] = {}
        self._knows_system = self._accepts([system("s"), user("u")])
        self._closing = self._encode_text(self._after_answer([], add_generation_prompt=False))
        self.prefix_preserving = self._preserves("a") and self._preserves("<think>\nq\n</think>\n\na")
        """Whether the template shows past turns exactly as they were when the policy answered."""
        self.opens_reasoning = self._start([user("u")]).rstrip().endswith("<think>")
        """Whether the prompt ends inside a `<think>` that the answer closes."""
        self._rewrites = {known: self._rewrites_history(known) for known in (False, True)}

    @classmethod
    def from_bundle(cls, bundle: RendererBundle) -> Renderer:
        """Build the renderer of a model that the service offers."""
        try:
            tokenizer = Tokenizer.from_str(bundle.tokenizer_json)
        except Exception as error:  # tokenizers raises bare Exception
            raise TemplateError(f"the tokenizer of {bundle.model} cannot be read: {error}") from error
        return cls(
            tokenizer=tokenizer,
            template=ChatTemplate(bundle.chat_template, bundle.special_tokens),
            stop_ids=bundle.stop_ids,
            context_length=bundle.context_length,
        )

    @property
    def vocab_size(self) -> int:
        """How many token ids there are, added ones included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def start(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a whole conversation, opened for the policy's answer."""
        return self._ids(messages, self._start)

    def continuation(self, messages: Sequence[Message], *, answer_closed: bool) -> list[int]:
        """Return the ids between the end of a sampled answer and the start of the next.

        Args:
            messages: What came after the answer, usually one message from the environment.
            answer_closed: Whether the answer ended with a stop token; if a limit cut it, the ids begin by
                closing it.
        """
        ids = self._ids(messages, self._after)
        return ids[self._closed_length(ids) :] if answer_closed else ids

    def rewrites_history(self, messages: Sequence[Message]) -> bool:
        """Whether the template changes what the policy has read, as this conversation goes on.

        Some move the system prompt into the newest message. Changes within answers do not count: a loop that
        goes on by `continuation` leaves answers as they were sampled.
        """
        return self._rewrites[bool(messages) and messages[0]["role"] == "system"]

    def encode_answer(self, text: str) -> list[int]:
        """Return the ids of an answer that somebody else wrote, closed as the template closes answers."""
        ids = self._encode_text(text)
        return ids + self._closing[: self._closed_length(self._closing)]

    def decode_answer(self, token_ids: Sequence[int]) -> str:
        """Return the text of sampled ids without the stop token at their end.

        Special tokens in the middle stay visible: an answer that is garbled should look garbled.
        """
        ids = list(token_ids)
        if ids and ids[-1] in self.stop_ids:
            ids.pop()
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of any ids, special tokens included; to read, not to train on."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    # --- what the template does ---

    def _accepts(self, messages: list[Message]) -> bool:
        try:
            self._template.render(messages, add_generation_prompt=True)
        except TemplateError:
            return False
        return True

    def _after_answer(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        conversation = [user("u"), assistant(_ANSWER), *messages]
        text = self._template.render(conversation, add_generation_prompt=add_generation_prompt)
        _, found, after = text.partition(_ANSWER)
        if not found:
            raise TemplateError(
                "the chat template does not show past answers of the policy",
                hint="use a template that writes the content of assistant messages",
            )
        return after

    def _closed_length(self, ids: list[int]) -> int:
        """How many leading ids only close the answer: all through the stop token, if there is one."""
        for position, (token, closing) in enumerate(zip(ids, self._closing, strict=False)):
            if token != closing:
                return 0
            if token in self.stop_ids:
                return position + 1
        return 0

    def _preserves(self, answer: str) -> bool:
        before = self._template.render([user("u")], add_generation_prompt=True)
        conversation = [user("u"), assistant(answer), user("v")]
        return self._template.render(conversation, add_generation_prompt=True).startswith(before + answer)

    def _rewrites_history(self, with_system: bool) -> bool:
        if with_system and not self._knows_system:
            return False  # it is folded into the first message, before the template sees it
        conversation = [*([system("s")] if with_system else []), user("u")]
        grown = self._template.render(conversation, add_generation_prompt=False)
        for answer, reply in ((f"{_ANSWER}1", "v"), (f"{_ANSWER}2", "w")):
            conversation += [assistant(answer), user(reply)]
            text = self._template.render(conversation, add_generation_prompt=False)
            before, _, after = text.partition(answer)
            if not before.startswith(grown):
                return True
            if after != self._after_answer([user(reply)], add_generation_prompt=False):
                return True
            grown = text
        return False

    # --- ids ---

    def _ids(self, messages: Sequence[Message], render: _Render) -> list[int]:
        characters = 0
        for message in messages:
            if len(message) > 2:  # with a `name` or a `tool_call_id`
                return self._encode(messages, render)
            characters += len(message["content"])
        if characters > _MOST_REMEMBERED_CHARACTERS:
            return self._encode(messages, render)
        return list(self._remembered(tuple([(m["role"], m["content"]) for m in messages]), render))

    def _encode_anew(self, messages: tuple[tuple[Role, str], ...], render: _Render) -> tuple[int, ...]:
        return tuple(self._encode([{"role": role, "content": content} for role, content in messages], render))

    def _start(self, messages: Sequence[Message]) -> str:
        if not self._knows_system and messages and messages[0]["role"] == "system":
            messages = _fold_system(messages)
        self._refuse_hidden(messages[1:])
        return self._template.render(messages, add_generation_prompt=True)

    def _after(self, messages: Sequence[Message]) -> str:
        self._refuse_hidden(messages)
        return self._after_answer(messages, add_generation_prompt=True)

    def _refuse_hidden(self, messages: Sequence[Message]) -> None:
        """Refuse messages that the template would leave out, as some do with tools or late prompts."""
        for role in {message["role"] for message in messages} - {"user", "assistant"}:
            if role not in self._shown:
                shown: Message = {"role": role, "content": "tinkergymShown7f3a"}
                text = self._after_answer([shown], add_generation_prompt=False)
                self._shown[role] = "tinkergymShown7f3a" in text
            if not self._shown[role]:
                raise TemplateError(
                    f"the chat template leaves out a message with the role {role} in the conversation",
                    hint="say it in the role user, or choose a model whose template shows it",
                )

    def _encode_text(self, text: str) -> list[int]:
        # The template writes its own special tokens; the tokenizer must not add others.
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _encode(self, messages: Sequence[Message], render: _Render) -> list[int]:
        """Encode what `render` makes of the messages, with special tokens only where the template put them.

        An observation that quotes `<|im_end|>` must not be able to end its own message and speak as somebody
        else; so its text becomes ordinary tokens.
        """
        quoted: list[str] = []
        specials = self._specials
        if specials is not None and any(specials.search(str(v)) for m in messages for v in m.values()):
            messages = [self._with_placeholders(message, quoted) for message in messages]
        text = render(messages)
        if not quoted:
            return self._encode_text(text)
        ids: list[int] = []
        for position, part in enumerate(_LITERAL_PATTERN.split(text)):
            if position % 2 == 0:
                ids += self._encode_text(part)
            else:
                literal = quoted[int(part) % len(quoted)]
                ids += self._literal_tokenizer.encode(literal, add_special_tokens=False).ids
        return ids

    def _with_placeholders(self, message: Message, quoted: list[str]) -> Message:
        def replace(match: re.Match[str]) -> str:
            quoted.append(match.group())
            return _LITERAL.format(len(quoted) - 1)

        assert self._specials is not None
        texts = {key: self._specials.sub(replace, str(text)) for key, text in message.items()}
        return {**texts, "role": message["role"]}  # type: ignore[typeddict-item]


def _fold_system(messages: Sequence[Message]) -> list[Message]:
    """Put the system message in front of the first user message, for templates without a system role."""
    first, *rest = messages
    if rest and rest[0]["role"] == "user":
        opened: Message = {**rest[0], "content": f"{first['content']}\n\n{rest[0]['content']}"}
        return [opened, *rest[1:]]
    return [user(first["content"]), *rest]
