"""The response of `POST /completions`, whole or as the events of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import Field

from tinkergym.openai_api.chat_answer import PromptLogprobs, Reply, Usage
from tinkergym.openai_api.chat_choices import fingerprint
from tinkergym.openai_api.chat_stream import SampledPieces
from tinkergym.openai_api.completion_text import prompt_logprobs_of, text_of
from tinkergym.openai_api.sampling_fields import MOST_CHOICES
from tinkergym.openai_api.server_events import DONE, as_event
from tinkergym.openai_api.text_request import TextRequest
from tinkergym.openai_api.token_requests import Prompt
from tinkergym.schema.model import WireModel
from tinkergym.schema.sampling import Completion, CompletionPart, Likeliest, PromptScores
from tinkergym.trajectory.trajectory import MOST_TOKENS, Logprob, TokenId


class TextLogprobs(WireModel):
    """The tokens of a choice, those of the prompt included if it is returned."""

    tokens: list[str] = Field(max_length=MOST_TOKENS)
    token_logprobs: list[Logprob | None] = Field(max_length=MOST_TOKENS)
    """In nats; None for the first token of a prompt."""
    top_logprobs: list[dict[str, float] | None] = Field(max_length=MOST_TOKENS)
    """The likeliest tokens and the one that was sampled, or that the prompt has; None for its first."""
    text_offset: list[int] = Field(max_length=MOST_TOKENS)


class TextChoice(Reply):
    """One completion, or what an event adds to it."""

    if_set = frozenset({"token_ids", "prompt_token_ids", "prompt_logprobs"})

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None
    token_ids: list[TokenId] | None = Field(None, max_length=MOST_TOKENS)
    prompt_token_ids: list[TokenId] | None = Field(None, max_length=MOST_TOKENS)
    prompt_logprobs: PromptLogprobs | None = Field(None, max_length=MOST_TOKENS)


class TextReply(Reply):
    """A whole response, or an event of a stream."""

    if_set = frozenset({"usage"})

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice] = Field(max_length=MOST_CHOICES)
    usage: Usage | None = None
    system_fingerprint: str


class TextChoices:
    """The choices of one response, from whole completions or from their parts."""

    def __init__(self, prompts: Sequence[Prompt], wanted: TextRequest, reply_id: str, created: int) -> None:
        """Start before the first token."""
        self._prompts = [prompt for prompt in prompts for _ in range(wanted.n)]
        self._wanted, self._id, self._created = wanted, reply_id, created
        self._pieces = [SampledPieces(prompt, wanted.stops) for prompt in self._prompts]
        self._characters = [0] * len(self._pieces)
        self._echoed = set[int]()
        """The choices whose prompt was sent."""
        self._version = 0
        self._scores = dict[int, PromptScores]()
        """What is known of the prompts, by their place. One of a prompt's choices brings it for all."""
        self._held = dict[int, list[tuple[int, CompletionPart | Completion]]]()
        """By prompt, what came for its other choices before that."""

    def whole(self, found: Sequence[Completion]) -> TextReply:
        """Return the whole response."""
        for index, one in enumerate(found):
            self._score(index, one)
        choices = [self._whole(index, one) for index, one in enumerate(found)]
        for pieces, one in zip(self._pieces, found, strict=True):
            pieces.token_ids = one.token_ids
        self._version = found[0].policy_version
        return self._reply(choices, self._usage())

    def part(self, index: int, part: CompletionPart) -> Iterator[TextReply]:
        """Yield the events for some tokens of a choice, and for others' that waited for them."""
        yield from self._sent(index, part)

    def end(self, index: int, whole: Completion) -> Iterator[TextReply]:
        """Yield the last event of a choice, and events of others that waited for it."""
        yield from self._sent(index, whole)

    def _sent(self, index: int, new: CompletionPart | Completion) -> Iterator[TextReply]:
        for at, one in self._ready(index, new):
            yield from self._end(at, one) if isinstance(one, Completion) else self._part(at, one)

    def _score(self, index: int, one: CompletionPart | Completion) -> None:
        if one.prompt_logprobs is not None:
            self._scores[index // self._wanted.n] = one

    def _ready(
        self, index: int, one: CompletionPart | Completion
    ) -> list[tuple[int, CompletionPart | Completion]]:
        """Return what can be sent, now that this came: what shows a prompt's logprobs waits for them."""
        self._score(index, one)
        place = index // self._wanted.n
        held = [*self._held.pop(place, []), (index, one)]
        if not self._wanted.needs_prompt_logprobs or place in self._scores:
            return held
        self._held[place] = held
        return []

    def _part(self, index: int, part: CompletionPart) -> Iterator[TextReply]:
        self._version = part.policy_version
        text, _, new = self._pieces[index].part(part)
        before, ids = self._echo(index), part.token_ids[new]
        if before or text or (ids and (self._wanted.logprobs is not None or self._wanted.return_token_ids)):
            yield self._reply([self._choice(index, text, part, new, before=before)])

    def _end(self, index: int, whole: Completion) -> Iterator[TextReply]:
        self._version = whole.policy_version
        text, _, new, _ = self._pieces[index].end(whole)
        choice = self._choice(index, text, whole, new, before=self._echo(index))
        yield self._reply([choice.model_copy(update=self._closing(index, whole))])

    def usage(self) -> TextReply:
        """Return the event after all choices, with the numbers of tokens."""
        return self._reply([], self._usage())

    def closing(self) -> bytes:
        """Return what follows all choices of a stream."""
        return (as_event(self.usage()) if self._wanted.wants_usage else b"") + DONE

    def _usage(self) -> Usage:
        prompts = self._prompts[:: self._wanted.n]
        sampled = sum(len(pieces.token_ids) for pieces in self._pieces)
        return Usage.of(sum(len(prompt.token_ids) for prompt in prompts), sampled)

    def _whole(self, index: int, one: Completion) -> TextChoice:
        prompt, before = self._prompts[index], self._echo(index)
        choice = self._choice(index, text_of(prompt.renderer, one), one, slice(0, None), before=before)
        return choice.model_copy(update=self._closing(index, one))

    def _echo(self, index: int) -> str | None:
        """Return the text of a choice's prompt the first time, if it is wanted."""
        if not self._wanted.echo or index in self._echoed:
            return None
        self._echoed.add(index)
        return self._prompts[index].renderer.decode(self._prompts[index].token_ids)

    def _closing(self, index: int, one: Completion) -> dict[str, object]:
        """Return what a choice has besides its tokens."""
        prompt, found = self._prompts[index], dict[str, object](finish_reason=one.finish_reason)
        if self._wanted.wants_prompt_logprobs:
            scores = self._scores[index // self._wanted.n]
            found["prompt_logprobs"] = prompt_logprobs_of(
                prompt.renderer, prompt.token_ids, scores, self._wanted.top_prompt_logprobs
            )
        if self._wanted.return_token_ids:
            found["prompt_token_ids"] = prompt.token_ids
        return found

    def _choice(
        self, index: int, text: str, part: CompletionPart | Completion, new: slice, before: str | None = None
    ) -> TextChoice:
        logprobs = None
        if self._wanted.logprobs is not None:
            logprobs = self._logprobs(index, part, new, before)
        ids = part.token_ids[new]
        return TextChoice(
            index=index,
            text=(before or "") + text,
            logprobs=logprobs,
            token_ids=ids if self._wanted.return_token_ids else None,
        )

    def _logprobs(
        self, index: int, part: CompletionPart | Completion, new: slice, before: str | None
    ) -> TextLogprobs:
        """Return the logprobs of some tokens, after those of the prompt if `before` is its text, not None."""
        prompt = self._prompts[index]
        ids, logprobs = list(part.token_ids[new]), list[float | None](part.sampling_logprobs[new])
        tops: list[Likeliest | None] = [None] * len(ids)
        if part.top_logprobs is not None:
            tops = list(part.top_logprobs[new])
        if before is not None:
            scores, none = self._scores[index // self._wanted.n], [None] * len(prompt.token_ids)
            ids = prompt.token_ids + ids
            logprobs = [*(scores.prompt_logprobs or none), *logprobs]
            tops = [*(scores.top_prompt_logprobs or none), *tops]
        likeliest = [
            None if top is None else self._named(prompt, top, token, logprob)
            for top, token, logprob in zip(tops, ids, logprobs, strict=True)
        ]
        tokens = [prompt.renderer.decode([token]) for token in ids]
        offsets = []
        for token in tokens:
            offsets.append(self._characters[index])
            self._characters[index] += len(token)
        return TextLogprobs(
            tokens=tokens, token_logprobs=logprobs, top_logprobs=likeliest, text_offset=offsets
        )

    def _named(self, prompt: Prompt, top: Likeliest, token: int, logprob: float | None) -> dict[str, float]:
        shown = top[: self._wanted.logprobs]
        named = {prompt.renderer.decode([one]): value for one, value in shown}
        return named if logprob is None else {prompt.renderer.decode([token]): logprob, **named}

    def _reply(self, choices: list[TextChoice], usage: Usage | None = None) -> TextReply:
        return TextReply(
            id=self._id,
            created=self._created,
            model=self._wanted.model,
            choices=choices,
            usage=usage,
            system_fingerprint=fingerprint(self._version),
        )
