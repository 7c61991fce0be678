"""A completion as a line of the results: text, tool calls, counts, and what else was asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.prompts import PromptRow
from tinkergym.errors import InvalidRequestError, NotFoundError, TemplateError, from_wire
from tinkergym.schema.events import ErrorView
from tinkergym.schema.sampling import Completion, RowResult, SampleFailure
from tinkergym.tool_calls.call import ToolCall

RESERVED = frozenset(
    {
        *("row", "sample", "text", "finish_reason", "prompt_tokens", "completion_tokens", "policy_version"),
        *("tool_calls", "token_ids", "logprobs", "error"),
    }
)
"""Names of results that no kept column may have."""
_OF_THE_ROW = frozenset({"", "prompt", "prompt_ids", "images"})
"""Fields of errors that say something about a row, not about the run."""


def completed_line(
    row: PromptRow, sample: int, completion: Completion, *, token_ids: bool, logprobs: bool
) -> dict[str, Any]:
    """Return the results of one completion of a row."""
    assert row.renderer is not None
    text = completion.text
    if text is None:
        text = row.renderer.decode_answer(completion.token_ids)
    line: dict[str, Any] = {"row": row.number, "sample": sample, **row.kept, "text": text}
    if row.renderer.reads_calls:
        line |= _calls(row, text)
    line |= {
        "finish_reason": completion.finish_reason,
        "prompt_tokens": len(row.token_ids),
        "completion_tokens": len(completion.token_ids),
        "policy_version": completion.policy_version,
    }
    if token_ids:
        line["token_ids"] = list(completion.token_ids)
    if logprobs:
        line["logprobs"] = list(completion.sampling_logprobs)
    return line


def failed_line(row: PromptRow, sample: int, error: ErrorView) -> dict[str, Any]:
    """Return the results of a row that has no completion."""
    return {
        **{"row": row.number, "sample": sample},
        **row.kept,
        **{"text": None, "prompt_tokens": len(row.token_ids), "completion_tokens": 0},
        "error": {"type": error.type, "message": f"{row.where}: {error.message}"},
    }


def fault_of(failure: SampleFailure) -> ErrorView:
    """Return the error of a request that concerns its row only.

    Raises:
        TinkerGymError: It concerns all rows: the service is away, or refuses the policy or a setting.
    """
    error = from_wire(failure.error.model_dump())
    if isinstance(error, InvalidRequestError) and error.field in _OF_THE_ROW:
        return failure.error
    if isinstance(error, NotFoundError) and error.field == "images":
        return failure.error
    raise error


def stored_lines(result: RowResult, renderer: Renderer, *, token_ids: bool) -> Iterator[dict[str, Any]]:
    """Yield the lines of a row of an inference job.

    Args:
        result: As the service stored it.
        renderer: The job's renderer.
        token_ids: Whether to return the sampled ids.
    """
    note = result.note
    row = PromptRow(
        number=result.row,
        where=note.where,
        token_ids=range(result.prompt_tokens),
        kept=note.kept,
        renderer=renderer.with_tools(note.tools),
    )
    for number, sample in enumerate(result.samples):
        if sample.error is not None or sample.finish_reason is None:
            error = sample.error or ErrorView(type="InternalServiceError", message="no completion")
            yield failed_line(row, number, error)
            continue
        completion = Completion.model_construct(
            request_id="",
            token_ids=sample.token_ids,
            sampling_logprobs=sample.logprobs or [],
            finish_reason=sample.finish_reason,
            policy_version=sample.policy_version,
            text=sample.text,
        )
        yield completed_line(
            row, number, completion, token_ids=token_ids, logprobs=sample.logprobs is not None
        )


def _calls(row: PromptRow, text: str) -> dict[str, Any]:
    """Return the text before the calls of an answer, and the calls; all of it if one cannot be parsed."""
    assert row.renderer is not None
    try:
        read = row.renderer.call_grammar.read(text)
    except TemplateError:
        return {"tool_calls": []}
    calls = [
        {
            "id": call.id or f"call{number:05d}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for number, call in enumerate(read.calls)
        if isinstance(call, ToolCall)
    ]
    whole = len(calls) == len(read.calls)
    return {"text": read.content if whole else text, "tool_calls": calls if whole else []}
