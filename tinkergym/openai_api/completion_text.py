"""What a completion's tokens say: text and calls, and the parts of a response that describe single tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tinkergym.agent.renderer import Renderer
from tinkergym.openai_api.chat_answer import (
    CalledFunction,
    CallReply,
    FinishReason,
    LikelyToken,
    PromptLogprobs,
    PromptToken,
    SampledToken,
    TokenLogprobs,
)
from tinkergym.schema.sampling import Completion, Likeliest, PromptScores
from tinkergym.tool_calls.call import MalformedCall, ToolCall
from tinkergym.tool_calls.grammar import ReadAnswer

_CALL_ID = re.compile(r"call([0-9]{5})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A message as its tokens say it."""

    content: str | None
    """None if it only calls tools."""
    calls: list[CallReply]

    def finish_reason(self, reason: str) -> FinishReason:
        """Return why it ended, given the engine's reason."""
        if self.calls:
            return "tool_calls"
        return "stop" if reason == "stop" else "length"


class CallReader:
    """Reads the calls of completions that continue one conversation."""

    def __init__(
        self, renderer: Renderer, tools: Sequence[Mapping[str, Any]], messages: Sequence[Mapping[str, Any]]
    ) -> None:
        """Read calls of these tools; ids continue those of the messages."""
        self.grammar = renderer.call_grammar
        self._schemas = {
            tool["function"]["name"]: tool["function"].get("parameters", {}).get("properties", {})
            for tool in tools
        }
        ids = [str(call.get("id")) for message in messages for call in message.get("tool_calls", ())]
        # As the agent loop numbers them: some templates show ids, and one accepts only this length.
        found = [int(number[1]) + 1 for one in ids if (number := _CALL_ID.fullmatch(one))]
        self._first = max([len(ids), *found])

    def said(self, text: str) -> Said:
        """Return a message with its calls. Calls that cannot be read stay text."""
        read = self.grammar.read(text)
        if not read.calls:
            return Said(content=text, calls=[])
        content, calls = self._parts(read)
        return Said(content=content.rstrip() or None, calls=calls)

    def complete(self, text: str, known: int) -> list[CallReply]:
        """Return the calls of an unfinished text that are complete, without the first `known` ones."""
        calls = self.grammar.closed_calls(text)
        return [self.reply(call, number) for number, call in enumerate(calls) if number >= known]

    def _parts(self, read: ReadAnswer) -> tuple[str, list[CallReply]]:
        content, calls = read.content, list[CallReply]()
        for call in read.calls:
            if isinstance(call, MalformedCall):
                # As the agent loop shows it to the environment.
                content += f"<tool_call>\n{call.text}\n</tool_call>"
            else:
                calls.append(self.reply(call, len(calls)))
        return content, calls

    def reply(self, call: ToolCall, number: int) -> CallReply:
        """Return the completion's call of this number."""
        arguments = call.arguments
        if self.grammar.kind == "pairs":
            found = self._schemas.get(call.name)
            schemas = found if isinstance(found, Mapping) else {}
            arguments = {name: _typed(value, schemas.get(name)) for name, value in arguments.items()}
        written = json.dumps(arguments, ensure_ascii=False)
        return CallReply(
            id=call.id or f"call{self._first + number:05d}",
            function=CalledFunction(name=call.name, arguments=written),
        )


def _typed(value: Any, schema: Any) -> Any:
    """Return an argument that its format writes as text, as its schema types it."""
    if (
        not isinstance(value, str)
        or not isinstance(schema, Mapping)
        or schema.get("type") in (None, "string")
    ):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(value, value)


def text_of(renderer: Renderer, completion: Completion) -> str:
    """Return a completion's text, as the agent loop returns it as an action."""
    return renderer.decode_answer(completion.token_ids) if completion.text is None else completion.text


def logprobs_of(
    renderer: Renderer,
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    likeliest: Sequence[Sequence[tuple[int, float]]] | None,
) -> TokenLogprobs:
    """Return the logprobs of sampled tokens."""
    shown = likeliest or [()] * len(token_ids)
    return TokenLogprobs(
        content=[
            SampledToken(
                **_token(renderer, token, logprob),
                top_logprobs=[LikelyToken(**_token(renderer, *one)) for one in others],
            )
            for token, logprob, others in zip(token_ids, logprobs, shown, strict=True)
        ]
    )


def prompt_logprobs_of(
    renderer: Renderer, token_ids: Sequence[int], scores: PromptScores, likeliest: int
) -> PromptLogprobs | None:
    """Return the logprobs of the prompt's tokens in vLLM's format; None if they were not computed.

    Args:
        renderer: Decodes them.
        token_ids: The prompt's.
        scores: What was computed.
        likeliest: How many likeliest tokens to return in the place of each.
    """
    if scores.prompt_logprobs is None:
        return None
    decoded = lru_cache(maxsize=None)(lambda token: renderer.decode([token]))

    def place(token: int, logprob: float | None, rank: int | None, top: Likeliest | None) -> Any:
        if logprob is None:
            return None
        others = [(rank, *one) for rank, one in enumerate((top or [])[:likeliest], 1)]
        return {
            str(one): PromptToken(logprob=value, rank=rank, decoded_token=decoded(one))
            for rank, one, value in [(rank, token, logprob), *others]
        }

    nothing = [None] * len(token_ids)
    ranks, tops = scores.prompt_ranks or nothing, scores.top_prompt_logprobs or nothing
    return list(map(place, token_ids, scores.prompt_logprobs, ranks, tops))


def _token(renderer: Renderer, token: int, logprob: float) -> dict[str, Any]:
    return {"token": renderer.decode([token]), "logprob": logprob, "bytes": list(renderer.bytes_of(token))}
