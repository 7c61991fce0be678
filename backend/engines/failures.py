"""Errors of every engine: those with which it answers requests, and those of the callbacks it answers to."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from tinkergym.agent.sampler import Deliver
from tinkergym.errors import (
    InvalidRequestError,
    PolicyVersionGoneError,
    ServiceUnavailableError,
    TinkerGymError,
    UnsupportedPartError,
)
from tinkergym.schema.events import ErrorView
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest

_log = logging.getLogger(__name__)


def failure(request: SampleRequest, error: TinkerGymError) -> SampleFailure:
    """Answer a request with an error."""
    return SampleFailure(request_id=request.request_id, error=ErrorView(**error.to_wire()))


def deliver_to(deliver: Deliver, answers: Sequence[Completion | SampleFailure]) -> None:
    """Hand answers over to one caller; an error of its callback is logged, as others share the engine."""
    try:
        deliver(answers)
    except Exception:
        _log.exception("a callback for %d completions failed; the engine continues", len(answers))


def engine_closing() -> ServiceUnavailableError:
    """Return the error for requests that arrive when the engine closes, or are left then."""
    return ServiceUnavailableError("the engine is closing", hint="repeat the request in a moment")


def version_gone(request: SampleRequest) -> PolicyVersionGoneError:
    """Return the error for a policy version that is not loaded."""
    return PolicyVersionGoneError(
        f"policy {request.policy!r} at version {request.policy_version} is not loaded in the engine",
        hint="a newer version was published, or the policy was retired; ask for the newest version",
    )


def sender_gone(request: SampleRequest | None) -> ServiceUnavailableError:
    """Return the error for a request whose sender is gone; None is a batch of requests."""
    name = "these requests" if request is None else repr(request.request_id)
    return ServiceUnavailableError(f"the sender of {name} is gone", hint="ask again")


def images_refused(request: SampleRequest) -> UnsupportedPartError | None:
    """Return the error for a request with images; None if it has none."""
    if not request.images:
        return None
    return UnsupportedPartError(
        "the prompt contains an 'image' part, but this model supports only text",
        hint="leave images out of the prompt",
        field="images",
    )


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


def stops_refused(request: SampleRequest, model_directory: Path | None) -> InvalidRequestError | None:
    """Return why an engine cannot detect the request's stop strings; None if it can."""
    if not request.stop or (model_directory is not None and (model_directory / "tokenizer.json").is_file()):
        return None
    return InvalidRequestError(
        "the model has no tokenizer.json, so the engine cannot detect stop strings",
        hint="add its tokenizer.json to its directory, or use stop_ids",
        field="stop",
    )
