import pytest

from tinkergym.errors import (
    AuthenticationError,
    ConflictError,
    InternalServiceError,
    InvalidRequestError,
    LimitedKeyError,
    NotFoundError,
    PolicyVersionGoneError,
    PromptTooLongError,
    ReadOnlyKeyError,
    ServiceUnavailableError,
    TemplateError,
    TooManyRequestsError,
    UnknownModelError,
)
from tinkergym.openai_api.api_errors import reply_to


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (AuthenticationError("no"), 401, "invalid_request_error", "invalid_api_key"),
        (ReadOnlyKeyError("no"), 403, "invalid_request_error", "read_only_key"),
        (LimitedKeyError("no"), 403, "invalid_request_error", "limited_key"),
        (NotFoundError("no", field="policy"), 404, "invalid_request_error", "model_not_found"),
        (NotFoundError("no", field="images"), 404, "invalid_request_error", "not_found"),
        (UnknownModelError("no"), 404, "invalid_request_error", "model_not_found"),
        (PolicyVersionGoneError("no"), 404, "invalid_request_error", "model_not_found"),
        (PromptTooLongError("no"), 400, "invalid_request_error", "context_length_exceeded"),
        (TemplateError("no"), 400, "invalid_request_error", "template"),
        (InvalidRequestError("no", code="too_long"), 400, "invalid_request_error", "too_long"),
        (ConflictError("no"), 400, "invalid_request_error", "conflict"),
        (TooManyRequestsError("no"), 429, "rate_limit_error", "rate_limit_exceeded"),
        (ServiceUnavailableError("no"), 503, "server_error", "service_unavailable"),
        (InternalServiceError("no"), 500, "server_error", "internal_service"),
    ],
)
def test_has_status_type_and_code_that_clients_know(error, status, kind, code):
    found, reply = reply_to(error)
    assert (found, reply.error.type, reply.error.code) == (status, kind, code)


def test_names_the_parameter():
    _, reply = reply_to(InvalidRequestError("must be positive", hint="raise it", field="n"))
    assert reply.error.param == "n"
