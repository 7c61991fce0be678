"""Every refusal in one format, `{"error": {type, message, hint, field}}`, with the error's own status.

Below the paths of the OpenAI API it is that API's format, with its status.
"""

from __future__ import annotations

import logging
from math import ceil

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from backend.gateway.wiring import parts_of
from backend.processes.exhaustion import end_if_exhausted
from tinkergym.errors import (
    AuthenticationError,
    InternalServiceError,
    InvalidRequestError,
    NotFoundError,
    ServiceUnavailableError,
    TinkerGymError,
)
from tinkergym.openai_api.api_errors import PREFIX, reply_to
from tinkergym.schema.refusals import Refusal

_log = logging.getLogger(__name__)


def error_response(error: TinkerGymError, path: str) -> JSONResponse:
    """Return the response for `error` to a request for this path."""
    headers: dict[str, str] = {}
    if isinstance(error, ServiceUnavailableError):
        seconds = getattr(error, "retry_after_seconds", 1.0)
        headers |= {"Retry-After": str(ceil(seconds)), "Retry-After-Ms": str(ceil(1000 * seconds))}
    if isinstance(error, AuthenticationError):
        headers["WWW-Authenticate"] = "Bearer"
    if path.startswith(PREFIX):
        status, reply = reply_to(error)
        return JSONResponse(reply.model_dump(), status_code=status, headers=headers)
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
    return error_response(shown(request, error), request.url.path)


def shown(request: Request, error: TinkerGymError) -> TinkerGymError:
    """Return an error as the client of a request may see it."""
    if getattr(request.state, "is_local_owner", False):
        return error
    return parts_of(request).machine_paths.hidden_in_error(error)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = [str(part) for part in first["loc"] if isinstance(part, str)][-1]
    refusal = first.get("ctx", {}).get("refusal") or Refusal(
        field, str(first["msg"]), "see /v1/openapi.json", str(first["type"])
    )
    return error_response(refusal.error(), request.url.path)


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    asked = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        missing = NotFoundError(f"there is no route {asked}", hint="see /v1/openapi.json")
        return error_response(missing, request.url.path)
    refusal = InvalidRequestError(f"{asked}: {error.detail}", hint="see /v1/openapi.json")
    response = error_response(refusal, request.url.path)
    response.status_code = error.status_code
    return response


async def _hung_up(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)  # The client is gone, and nothing failed.


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    # The traceback goes to the log, not to the client: it may show another tenant's data.
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    end_if_exhausted(error)
    return error_response(
        InternalServiceError(
            f"the gateway failed at {request.method} {request.url.path}",
            hint="see logs/gateway.log in its data_dir",
        ),
        request.url.path,
    )
