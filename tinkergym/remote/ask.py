"""Single sampling requests that block until they are answered.

Rollout workers use batches (`HttpSampler`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from pydantic import ValidationError

from tinkergym.errors import InternalServiceError, ServiceUnavailableError, from_wire
from tinkergym.network.backoff import Backoff
from tinkergym.remote.transport import Connection
from tinkergym.schema.sampling import Completion, SampleBatch, SampleFailure, SampleRequest, read_answer

SAMPLE_PATH = "/v1/sample"
SILENCE_SECONDS = 300.0
PATIENCE_SECONDS = 60.0
"""Pause before asking again for a policy whose pool is not loaded. Loading a model takes seconds."""


def ask(
    connection: Connection, request: SampleRequest, *, sleep: Callable[[float], object] = time.sleep
) -> Completion:
    """Sample one request. If the service has to load the policy first, retry.

    Raises:
        ServiceUnavailableError: No completion within a minute.
        TinkerGymError: The service refused it, with the reason.
    """
    return _sampled(connection, [request], False, PATIENCE_SECONDS, sleep)[request.request_id]


def sampled_together(
    connection: Connection,
    requests: Sequence[SampleRequest],
    *,
    patience_seconds: float = PATIENCE_SECONDS,
    sleep: Callable[[float], object] = time.sleep,
) -> dict[str, Completion]:
    """Sample requests as one separate batch and return completions by request id.

    Raises:
        ServiceUnavailableError: No completion within `patience_seconds`.
        TinkerGymError: The service refused one of them, with the reason.
    """
    return _sampled(connection, requests, True, patience_seconds, sleep)


def _sampled(
    connection: Connection,
    requests: Sequence[SampleRequest],
    together: bool,
    patience_seconds: float,
    sleep: Callable[[float], object],
) -> dict[str, Completion]:
    body = SampleBatch.model_construct(requests=list(requests), together=together).model_dump_json().encode()
    waits = Backoff(patience_seconds=patience_seconds, first_seconds=0.2, sleep=sleep).waits()
    while True:
        try:
            answer = connection.call("POST", SAMPLE_PATH, body=body, timeout_seconds=SILENCE_SECONDS)
            # A missing line means that the response ended early.
            lines = [line for line in answer.split(b"\n") if line.strip()]
            lines += [b""] * (len(requests) - len(lines))
            return {completion.request_id: completion for completion in map(_read, lines)}
        except ServiceUnavailableError:
            if next(waits, None) is None:
                raise


def _read(line: bytes) -> Completion:
    if not line:
        raise ServiceUnavailableError("the service's response ended early")
    try:
        answer = read_answer(line)
    except ValidationError as error:
        raise InternalServiceError(
            f"the service's response to a sampling request is invalid: {error}"
        ) from error
    if isinstance(answer, SampleFailure):
        raise from_wire(answer.error.model_dump())
    return answer
