"""Errors in the format of the OpenAI API, `{"error": {message, type, param, code}}`, for its clients."""

from __future__ import annotations

from tinkergym.errors import (
    AuthenticationError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    PolicyVersionGoneError,
    PromptTooLongError,
    TinkerGymError,
    TooManyRequestsError,
    UnknownModelError,
)
from tinkergym.schema.model import WireModel

PREFIX = "/openai/"
"""The paths below it use this format."""

_MODEL_FIELDS = frozenset({"model", "policy", "policy_version"})


class ErrorBody(WireModel):
    """What went wrong."""

    message: str
    """What happened, and what to do."""
    type: str
    param: str | None = None
    """The parameter that is wrong, if it is one."""
    code: str | None = None
    """For programs: agents shorten their conversation at `context_length_exceeded`, for example."""


class ErrorReply(WireModel):
    """The body of a response with an error status."""

    error: ErrorBody


def reply_to(error: TinkerGymError) -> tuple[int, ErrorReply]:
    """Return the status and the body for an error."""
    status, kind, code = _in_their_words(error)
    param = error.field or None
    if code == _NO_MODEL:
        param = "model"
    return status, ErrorReply(error=ErrorBody(message=str(error), type=kind, param=param, code=code))


def _in_their_words(error: TinkerGymError) -> tuple[int, str, str]:
    """Return the status, type and code that clients of the API know."""
    if isinstance(error, NotFoundError) and error.field in _MODEL_FIELDS:
        return 404, _REFUSED, _NO_MODEL
    for kind, (status, type_, code) in _KINDS.items():
        if isinstance(error, kind):
            return status, type_, code or error.code
    is_refusal = error.http_status < 500
    return error.http_status, _REFUSED if is_refusal else _FAILED, error.code


_REFUSED, _FAILED, _NO_MODEL = "invalid_request_error", "server_error", "model_not_found"

_KINDS: dict[type[TinkerGymError], tuple[int, str, str]] = {
    AuthenticationError: (401, _REFUSED, "invalid_api_key"),
    TooManyRequestsError: (429, "rate_limit_error", "rate_limit_exceeded"),
    PromptTooLongError: (400, _REFUSED, "context_length_exceeded"),
    UnknownModelError: (404, _REFUSED, _NO_MODEL),
    PolicyVersionGoneError: (404, _REFUSED, _NO_MODEL),
    InvalidRequestError: (400, _REFUSED, ""),
    # Clients of the API repeat requests that were answered with 409.
    ConflictError: (400, _REFUSED, ""),
}
"""Status, type and code; kinds come before those that they are a kind of. No code is the error's own."""
