"""Every refusal in one format, `{"error": {type, message, hint, field}}`, with the error's own status."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from backend.gateway.wiring import parts_of
from tinkergym.errors import (
    AuthenticationError,
    InternalServiceError,
    InvalidRequestError,
    NotFoundError,
    ServiceUnavailableError,
    TinkerGymError,
)
from tinkergym.schema.refusals import Refusal

_log = logging.getLogger(__name__)


def error_response(error: TinkerGymError) -> JSONResponse:
    """Return the response for `error`."""
    headers = {}
    if isinstance(error, ServiceUnavailableError):
        headers["Retry-After"] = "1"
    if isinstance(error, AuthenticationError):
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": error.to_wire()}, status_code=error.http_status, headers=headers)


def install(app: FastAPI) -> None:
    """Make the application return all errors in our format."""
    app.add_exception_handler(TinkerGymError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ClientDisconnect, _hung_up)
    app.add_exception_handler(Exception, _unexpected)


async def _ours(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, TinkerGymError)
    if getattr(request.state, "is_local_owner", False):
        return error_response(error)
    return error_response(parts_of(request).machine_paths.hidden_in_error(error))


async def _invalid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    refusal = Refusal(str(first["loc"][-1]), str(first["msg"]), "see /v1/openapi.json", str(first["type"]))
    return error_response(refusal.error())


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    asked = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return error_response(NotFoundError(f"there is no route {asked}", hint="see /v1/openapi.json"))
    refusal = InvalidRequestError(f"{asked}: {error.detail}", hint="see /v1/openapi.json")
    response = error_response(refusal)
    response.status_code = error.status_code
    return response


async def _hung_up(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)  # The client is gone, and nothing failed.


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    # The traceback goes to the log, not to the client: it may show another tenant's data.
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(
        InternalServiceError(
            f"the gateway failed at {request.method} {request.url.path}",
            hint="see logs/gateway.log in its data_dir",
        )
    )
