"""Hands answers over to callers, whose failures are their own."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from backend.engines.protocol import Deliver
from backend.engines.transformers.request_state import RequestState
from tinkergym.schema.sampling import Completion, SampleFailure

_log = logging.getLogger(__name__)


def deliver_answered(states: Sequence[RequestState]) -> None:
    """Hand over the answers of requests, those of a caller together."""
    answers: dict[Deliver, list[Completion | SampleFailure]] = {}
    for state in states:
        assert state.answer is not None
        answers.setdefault(state.deliver, []).append(state.answer)
    for deliver, batch in answers.items():
        deliver_to(deliver, batch)


def deliver_to(deliver: Deliver, answers: Sequence[Completion | SampleFailure]) -> None:
    """Hand answers over to one caller."""
    try:
        deliver(answers)
    except Exception:
        _log.exception("a callback for %d completions failed; the engine continues", len(answers))
