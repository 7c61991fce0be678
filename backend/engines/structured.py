"""Structured output: what an engine says to a request for it that it cannot fulfil."""

from __future__ import annotations

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.sampling import SampleRequest


def structure_refused(request: SampleRequest, engine: str) -> InvalidRequestError | None:
    """Return why an engine that samples freely does not answer this request; None if it can."""
    if request.structured is None:
        return None
    return InvalidRequestError(
        f"engine={engine} cannot keep an answer to a {request.structured.kind}",
        hint="leave structured out, or ask a service that runs with engine=vllm",
        field="structured",
    )


def structure_impossible(
    request: SampleRequest, *, model: str, has_tokenizer: bool, has_stop: bool
) -> InvalidRequestError | None:
    """Return why an engine that can do it cannot do it for this request; None if it can."""
    if request.structured is None:
        return None
    if not has_tokenizer:
        return InvalidRequestError(
            f"the model {model!r} has no tokenizer.json, so nobody knows the text of its tokens",
            hint="put its tokenizer.json into its directory",
            field="structured",
        )
    if not has_stop:
        return InvalidRequestError(
            "a structured answer needs a stop id that the model has: when it is complete, it ends with one",
            hint="give the stop_ids of the model's renderer",
            field="stop_ids",
        )
    return None


def structure_unusable(request: SampleRequest, reason: str) -> InvalidRequestError:
    """Return that vLLM does not take the pattern or schema, with what it says."""
    kind = request.structured.kind if request.structured is not None else "structure"
    return InvalidRequestError(
        f"vLLM cannot keep an answer to this {kind}: {reason}",
        hint="mend it, or use simpler means of regular expressions or JSON schema",
        field="structured",
    )
