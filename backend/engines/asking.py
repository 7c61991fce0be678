"""Submit requests to an engine from a thread, and wait for their completions."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from backend.engines.protocol import SamplingEngine
from tinkergym.errors import InternalServiceError
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest

Answers = dict[str, Completion | SampleFailure]
"""By request id."""


class Asked:
    """Requests submitted to an engine, and the completions received so far."""

    def __init__(self, engine: SamplingEngine, requests: Sequence[SampleRequest]) -> None:
        self._missing = {request.request_id for request in requests}
        self._answers: Answers = {}
        self._twice: list[str] = []
        self._changed = threading.Condition()
        engine.submit(requests, self._deliver)

    def wait(self, seconds: float) -> Answers:
        """Return the completions once all have arrived, or after `seconds` those that have.

        Raises:
            InternalServiceError: The engine answered a request twice, or an unknown request.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._missing or self._twice, seconds)
            if self._twice:
                raise InternalServiceError(
                    f"the engine answered {self._twice[0]!r} more than once", hint="report this with the log"
                )
            return dict(self._answers)

    def _deliver(self, answers: Sequence[Completion | SampleFailure]) -> None:
        with self._changed:
            for answer in answers:
                if answer.request_id not in self._missing:
                    self._twice.append(answer.request_id)
                self._missing.discard(answer.request_id)
                self._answers[answer.request_id] = answer
            self._changed.notify_all()
