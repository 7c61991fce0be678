"""The supervisor's messages to the operator, as sentences and as JSON, and those while the service starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.app.probe import InBackground, health_of
from tinkergym import __version__


@dataclass(frozen=True, slots=True)
class Notice:
    """An event of the service; printed, it is its sentence."""

    event: str
    """The kind of event for programs, stable when sentences are rewritten."""
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    def to_json(self) -> dict[str, Any]:
        """Return the form for programs."""
        return {"event": self.event, "message": self.message, **self.details}


_WAIT_SECONDS = 0.05
_REFUSALS_SECONDS = 1.0
"""Interval between checks for parts that do not start."""


class Greeting:
    """Reports once that the service responds, once that it is ready, and until then what it waits for."""

    def __init__(
        self,
        url: str,
        key_file: Path,
        say: Callable[[Notice], None],
        refusals: Callable[[], Mapping[str, str]] = dict,
        *,
        isolation: Callable[[], Notice | None] = lambda: None,
        heard: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare.

        Args:
            url: The service's URL.
            key_file: The file with its key.
            say: Receives the messages.
            refusals: Returns, by model, why its worker does not start.
            isolation: Returns the message about the isolation of policies' code.
            heard: Called for each response of the service.
        """
        self._url = url
        self._health = InBackground(lambda: health_of(url))
        self._key_file = key_file
        self._say = say
        self._refusals = refusals
        self._isolation = isolation
        self._heard = heard
        self._refusals_said: Mapping[str, str] = {}
        self._next_refusals = 0.0
        self._began = time.monotonic()
        self._next_look = 0.0
        self.given = False
        """Whether the service has responded."""
        self.complete = False
        """Whether it was reported that the service is ready."""

    def give_when_due(self, now: float) -> None:
        """Report news, if there are any; `now` is on the monotonic clock."""
        if self.complete or now < self._next_look:
            return
        self._next_look = now + 0.2
        # A little, so that an answer is reported when it comes and not at the next look.
        health = self._health.answer(_WAIT_SECONDS)
        if health is None:
            return
        self._heard()
        waiting_for = health.get("waiting_for", [])
        if not self.given:
            self.given = True
            pages = f"{self._url}/dashboard"
            missing = f"; still starting: {', '.join(waiting_for)}" if waiting_for else ""
            self._say(
                Notice(
                    "serving",
                    f"tinkergym {__version__} serves at {self._url}, key in {self._key_file}; "
                    f"watch it at {pages}{missing}",
                    {
                        "url": self._url,
                        "dashboard": pages,
                        "key_file": str(self._key_file),
                        "waiting_for": waiting_for,
                    },
                )
            )
            if notice := self._isolation():
                self._say(notice)
        if not waiting_for:
            self.complete = True
            seconds = round(now - self._began, 1)
            self._say(Notice("ready", f"ready after {seconds:.1f} s; Ctrl-C stops it", {"seconds": seconds}))
        elif now >= self._next_refusals:
            self._next_refusals = now + _REFUSALS_SECONDS
            self._say_refusals()

    def _say_refusals(self) -> None:
        """Report why something does not start, once: it is retried, usually with the same result."""
        refusals = self._refusals()
        for model, reason in refusals.items():
            if self._refusals_said.get(model) != reason:
                message = f"the worker of model {model!r} does not start: {reason}"
                self._say(Notice("worker_refused", message, {"model": model, "reason": reason}))
        self._refusals_said = {**self._refusals_said, **refusals}
