"""Chat completions as the events of a stream. All events together say what the whole response would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tinkergym.openai_api.chat_answer import (
    CallReply,
    ChatChoiceDelta,
    ChatEvent,
    FinishReason,
    MessageDelta,
    TokenLogprobs,
    Usage,
)
from tinkergym.openai_api.chat_choices import fingerprint, said_in
from tinkergym.openai_api.chat_request import ChatRequest
from tinkergym.openai_api.completion_text import logprobs_of, prompt_logprobs_of
from tinkergym.openai_api.server_events import DONE, as_event
from tinkergym.openai_api.text_pieces import TextPieces
from tinkergym.openai_api.token_requests import Prompt
from tinkergym.schema.sampling import Completion, CompletionPart, PromptScores
from tinkergym.tool_calls.call import THOUGHT


class SampledPieces:
    """One completion while it is sampled: what is new since the last event."""

    def __init__(self, prompt: Prompt, stop: Sequence[str]) -> None:
        """Start before the first token.

        Args:
            prompt: What it continues.
            stop: The request's stop strings.
        """
        self._prompt = prompt
        opening = None if prompt.calls is None else prompt.calls.grammar.opening
        self._pieces = TextPieces(prompt.renderer, stop, opening)
        self._calls = 0
        """How many calls have been returned."""
        self._closings = 0
        self.token_ids: list[int] = []
        """The tokens so far."""
        self.content: str | None = None
        """All of the text; set at the end."""

    def part(self, part: CompletionPart) -> tuple[str, list[CallReply], slice]:
        """Return the text and the complete calls that a part adds, and which of its tokens are new.

        An engine that was restarted samples the same tokens again.
        """
        known = len(self.token_ids) - part.start
        if not 0 <= known <= len(part.token_ids):
            return "", [], slice(0, 0)
        new = slice(known, None)
        self.token_ids += part.token_ids[new]
        text = self._pieces.add(part.token_ids[new])
        return text, self._complete_calls(), new

    def _complete_calls(self) -> list[CallReply]:
        """Return the calls that are new and complete."""
        calls, text = self._prompt.calls, self._pieces.with_calls
        if calls is None or not text:
            return []
        # Reading takes time that grows with the text: only when another call may have ended.
        closings = text.count(calls.grammar.closing or "}")
        may_be_thought = self._prompt.thinks and THOUGHT not in text
        if closings == self._closings or may_be_thought:
            return []
        self._closings = closings
        return self._numbered(calls.complete(text, self._calls))

    def _numbered(self, calls: list[CallReply]) -> list[CallReply]:
        first, self._calls = self._calls, self._calls + len(calls)
        return [call.model_copy(update={"index": at}) for at, call in enumerate(calls, first)]

    def end(self, whole: Completion) -> tuple[str, list[CallReply], slice, FinishReason]:
        """Return the rest of the text and of the calls, which tokens are new, and why it ended."""
        new = slice(len(self.token_ids), None)
        said = said_in(self._prompt, whole)
        calls = self._numbered(said.calls[self._calls :])
        self.token_ids, self.content = whole.token_ids, said.content
        # A call that was sent stays one, even if a stray mark made it a thought after the fact.
        reason = "tool_calls" if self._calls else said.finish_reason(whole.finish_reason)
        return self._pieces.rest(said.content or ""), calls, new, reason


class ChatStream:
    """The events of one response."""

    def __init__(self, prompt: Prompt, wanted: ChatRequest, reply_id: str, created: int) -> None:
        """Start before the first token; see `chat_choices`."""
        self._prompt, self._wanted = prompt, wanted
        self._id, self._created = reply_id, created
        self._choices = [SampledPieces(prompt, wanted.stops) for _ in range(wanted.n)]
        self._begun: set[int] = set()
        self._version = 0
        self._is_first = True
        self._scores = PromptScores()

    def part(self, index: int, part: CompletionPart) -> Iterator[ChatEvent]:
        """Yield the events for some tokens of a choice."""
        self._score(part)
        yield from self._begin(index, part.policy_version)
        text, calls, new = self._choices[index].part(part)
        ids, logprobs = part.token_ids[new], self._logprobs(part, new)
        shows_tokens = bool(ids) and (self._wanted.logprobs or self._wanted.return_token_ids)
        if text or shows_tokens:
            delta = MessageDelta(content=text)
            yield self._event(self._choice(index, delta, ids=ids, logprobs=logprobs))
        yield from self._called(index, calls)

    def end(self, index: int, whole: Completion) -> Iterator[ChatEvent]:
        """Yield the last events of a choice."""
        self._score(whole)
        yield from self._begin(index, whole.policy_version)
        text, calls, new, reason = self._choices[index].end(whole)
        ids, logprobs = whole.token_ids[new], self._logprobs(whole, new)
        if text or ids:
            delta = MessageDelta(content=text or None)
            yield self._event(self._choice(index, delta, ids=ids, logprobs=logprobs))
        yield from self._called(index, calls)
        last = self._event(self._choice(index, MessageDelta(), reason=reason))
        renderer, ids, wanted = self._prompt.renderer, self._prompt.token_ids, self._wanted
        scores = (
            None if index else prompt_logprobs_of(renderer, ids, self._scores, wanted.top_prompt_logprobs)
        )
        yield last if scores is None else last.model_copy(update={"prompt_logprobs": scores})

    def _score(self, one: CompletionPart | Completion) -> None:
        """Keep the prompt's scores, which come once, for the first choice."""
        if one.prompt_logprobs is not None:
            self._scores = one

    def _called(self, index: int, calls: list[CallReply]) -> Iterator[ChatEvent]:
        for call in calls:
            yield self._event(self._choice(index, MessageDelta(tool_calls=[call])))

    def usage(self) -> ChatEvent:
        """Return the event after all choices, with the numbers of tokens."""
        sampled = sum(len(choice.token_ids) for choice in self._choices)
        return self._event(None, usage=Usage.of(len(self._prompt.token_ids), sampled))

    def closing(self) -> bytes:
        """Return what follows all choices."""
        return (as_event(self.usage()) if self._wanted.wants_usage else b"") + DONE

    def _begin(self, index: int, version: int) -> Iterator[ChatEvent]:
        if index in self._begun:
            return
        self._begun.add(index)
        self._version = version
        event = self._event(self._choice(index, MessageDelta(role="assistant", content="")))
        if self._is_first and self._wanted.return_token_ids:
            event = event.model_copy(update={"prompt_token_ids": self._prompt.token_ids})
        self._is_first = False
        yield event

    def _logprobs(self, part: CompletionPart | Completion, new: slice) -> TokenLogprobs | None:
        if not self._wanted.logprobs:
            return None
        likeliest = None if part.top_logprobs is None else part.top_logprobs[new]
        ids, logprobs = part.token_ids[new], part.sampling_logprobs[new]
        return logprobs_of(self._prompt.renderer, ids, logprobs, likeliest)

    def _choice(
        self,
        index: int,
        delta: MessageDelta,
        *,
        ids: list[int] | None = None,
        logprobs: TokenLogprobs | None = None,
        reason: FinishReason | None = None,
    ) -> ChatChoiceDelta:
        return ChatChoiceDelta(
            index=index,
            delta=delta,
            finish_reason=reason,
            logprobs=logprobs if ids else None,
            token_ids=ids if self._wanted.return_token_ids else None,
        )

    def _event(self, choice: ChatChoiceDelta | None, usage: Usage | None = None) -> ChatEvent:
        return ChatEvent(
            id=self._id,
            created=self._created,
            model=self._wanted.model,
            choices=[] if choice is None else [choice],
            usage=usage,
            system_fingerprint=fingerprint(self._version),
        )
