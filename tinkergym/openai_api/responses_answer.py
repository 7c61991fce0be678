"""The response of `POST /responses`, whole or as the events of a stream."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from tinkergym.openai_api.chat_answer import CallReply
from tinkergym.openai_api.chat_choices import said_in
from tinkergym.openai_api.chat_request import ChatRequest
from tinkergym.openai_api.chat_stream import SampledPieces
from tinkergym.openai_api.completion_text import logprobs_of
from tinkergym.openai_api.responses_request import ResponsesRequest
from tinkergym.openai_api.token_requests import Prompt
from tinkergym.schema.sampling import Completion, CompletionPart

Json = dict[str, Any]
"""Objects of this API are deeply nested and have many constant fields."""


class ResponsesReply:
    """One response."""

    def __init__(self, prompt: Prompt, wanted: ResponsesRequest, chat: ChatRequest, created: int) -> None:
        """Start before the first token.

        Args:
            prompt: What is continued.
            wanted: The request.
            chat: The same request for a chat completion.
            created: Unix seconds.
        """
        self._prompt, self._wanted, self._created = prompt, wanted, created
        self._id, self._message_id = f"resp_{secrets.token_hex(12)}", f"msg_{secrets.token_hex(12)}"
        self._pieces = SampledPieces(prompt, chat.stops)
        self._number = 0
        self._text: str | None = None
        self._output: list[Json] = []
        """The items of a stream so far; the text's has its place when it begins."""
        self._at = 0
        """The place of the text's."""

    def whole(self, completion: Completion) -> Json:
        """Return the whole response."""
        said = said_in(self._prompt, completion)
        message = [] if said.content is None else [self._message(said.content, self._logprobs(completion))]
        return self._response(completion, [*message, *map(self._call, said.calls)])

    # --- as a stream ---

    def part(self, index: int, part: CompletionPart) -> Iterator[Json]:
        """Yield the events for some tokens."""
        del index
        yield from self._begin()
        text, calls, _ = self._pieces.part(part)
        yield from self._add(text)
        yield from self._called(calls)

    def end(self, index: int, whole: Completion) -> Iterator[Json]:
        """Yield the last events."""
        del index
        yield from self._begin()
        text, calls, _, _ = self._pieces.end(whole)
        yield from self._add(text)
        yield from self._called(calls)
        if not self._output:
            yield from self._open()
        if self._text is not None:
            self._output[self._at] = self._message(self._text, self._logprobs(whole))
            yield from self._close(self._output[self._at])
        response = self._response(whole, self._output)
        yield self._event(f"response.{response['status']}", response=response)

    def closing(self) -> bytes:
        """Return what follows the last event: nothing."""
        return b""

    def _begin(self) -> Iterator[Json]:
        if self._number == 0:
            begun = self._response(None, [])
            yield self._event("response.created", response=begun)
            yield self._event("response.in_progress", response=begun)

    def _open(self) -> Iterator[Json]:
        self._text, self._at = "", len(self._output)
        item = {**self._message("", []), "status": "in_progress", "content": []}
        self._output.append(item)
        yield self._event("response.output_item.added", output_index=self._at, item=item)
        yield self._event("response.content_part.added", **self._place, part=_part("", []))

    def _add(self, text: str) -> Iterator[Json]:
        if not text:
            return
        if self._text is None:
            yield from self._open()
        self._text = (self._text or "") + text
        yield self._event("response.output_text.delta", **self._place, delta=text, logprobs=[])

    def _close(self, message: Json) -> Iterator[Json]:
        (part,) = message["content"]
        said = {"text": part["text"], "logprobs": part["logprobs"]}
        yield self._event("response.output_text.done", **self._place, **said)
        yield self._event("response.content_part.done", **self._place, part=part)
        yield self._event("response.output_item.done", output_index=self._at, item=message)

    def _called(self, calls: Sequence[CallReply]) -> Iterator[Json]:
        for call in calls:
            self._output.append(self._call(call))
            yield from self._one_called(self._output[-1], len(self._output) - 1)

    def _one_called(self, item: Json, index: int) -> Iterator[Json]:
        place = {"output_index": index, "item_id": item["id"]}
        begun = {**item, "arguments": "", "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=index, item=begun)
        arguments = item["arguments"]
        yield self._event("response.function_call_arguments.delta", **place, delta=arguments)
        yield self._event(
            "response.function_call_arguments.done", **place, arguments=arguments, name=item["name"]
        )
        yield self._event("response.output_item.done", output_index=index, item=item)

    @property
    def _place(self) -> Json:
        return {"output_index": self._at, "item_id": self._message_id, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> Json:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}

    # --- parts of a response ---

    def _message(self, text: str, logprobs: list[Json]) -> Json:
        return {
            "id": self._message_id,
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [_part(text, logprobs)],
        }

    def _call(self, call: CallReply) -> Json:
        return {
            "id": f"fc_{secrets.token_hex(12)}",
            "type": "function_call",
            "call_id": call.id,
            "name": call.function.name,
            "arguments": call.function.arguments,
            "status": "completed",
        }

    def _logprobs(self, completion: Completion) -> list[Json]:
        if not self._wanted.wants_logprobs:
            return []
        found = logprobs_of(
            self._prompt.renderer,
            completion.token_ids,
            completion.sampling_logprobs,
            completion.top_logprobs,
        )
        return [token.model_dump() for token in found.content]

    def _response(self, completion: Completion | None, output: list[Json]) -> Json:
        cut = completion is not None and completion.finish_reason == "length"
        status = "in_progress" if completion is None else "incomplete" if cut else "completed"
        wanted = self._wanted
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": wanted.instructions,
            "max_output_tokens": wanted.max_output_tokens,
            "model": wanted.model,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": False,
            "temperature": wanted.temperature,
            "text": {"format": {"type": "text"} if wanted.text is None else wanted.text.format.as_chat()},
            "tool_choice": wanted.tool_choice or "auto",
            "tools": [tool.model_dump() for tool in wanted.tools],
            "top_p": wanted.top_p,
            "truncation": wanted.truncation,
            "usage": None if completion is None else self._usage(completion),
            "metadata": {},
        }

    def _usage(self, completion: Completion) -> Json:
        given, sampled = len(self._prompt.token_ids), len(completion.token_ids)
        return {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": given + sampled,
        }


def _part(text: str, logprobs: list[Json]) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
