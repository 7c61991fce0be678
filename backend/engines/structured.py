"""Structured output: the errors for requests that an engine cannot fulfil."""

from __future__ import annotations

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.sampling import SampleRequest


def structure_refused(request: SampleRequest, engine: str) -> InvalidRequestError | None:
    """Return the error for a request with structured output, for an engine without it; None without."""
    if request.structured is None:
        return None
    return InvalidRequestError(
        f"engine={engine} does not support structured output ({request.structured.kind})",
        hint="leave out structured, or use a service with engine=vllm",
        field="structured",
    )


def structure_impossible(
    request: SampleRequest, *, model: str, has_tokenizer: bool, has_stop: bool
) -> InvalidRequestError | None:
    """Return why an engine with structured output cannot fulfil this request; None if it can."""
    if request.structured is None:
        return None
    if not has_tokenizer:
        return InvalidRequestError(
            f"the model {model!r} has no tokenizer.json, so the text of its tokens is unknown",
            hint="add its tokenizer.json to its directory",
            field="structured",
        )
    if not has_stop:
        return InvalidRequestError(
            "a structured completion needs one of the model's stop ids, because it ends with one",
            hint="pass the stop_ids of the model's renderer",
            field="stop_ids",
        )
    return None


def structure_unusable(request: SampleRequest, reason: str) -> InvalidRequestError:
    """Return the error for a pattern or schema that vLLM refuses, with its message."""
    kind = request.structured.kind if request.structured is not None else "structure"
    return InvalidRequestError(
        f"vLLM does not support this {kind}: {reason}",
        hint="correct it, or use simpler features of regular expressions or JSON Schema",
        field="structured",
    )
