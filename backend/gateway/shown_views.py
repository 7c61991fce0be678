"""What clients may see of the store's contents.

Paths of the machine are only shown to its owner. Adds that the disk is full or
read-only, which the store cannot record.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass

from fastapi import Request

from backend.config import ServiceConfig
from backend.gateway.wiring import parts_of
from backend.machine_paths import MachinePaths
from backend.store.store import TenantStore
from tinkergym.schema.events import (
    CheckpointEvent,
    CheckpointView,
    ErrorView,
    Event,
    StateEvent,
    WarningEvent,
)
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.queue import QueueView
from tinkergym.schema.summaries import JobSummary
from tinkergym.schema.views import ModelView

_FULL_BYTES = 2**20
"""With less free space the database may be unable to record a job's state."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One tenant's views."""

    config: ServiceConfig
    hide: MachinePaths | None
    """None hides nothing."""

    def job(self, view: JobView) -> JobView:
        """Return a job with its cost. While nothing can be recorded of it, its reason says so."""
        cost = self.config.prices.cost(view.used_seconds, view.used_tokens)
        shown = self.recorded(view).model_copy(update={"cost": cost})
        if view.state.final or not (trouble := disk_trouble(self.config)):
            return shown
        reason = f"the service's disk {trouble}, so the job cannot continue; the operator must help"
        return shown.model_copy(update={"reason": reason})

    def recorded(self, view: JobView) -> JobView:
        """Return a job as its events have it."""
        if self.hide is None:
            return view
        changes = {"reason": self.hide.hidden_in(view.reason), "error": self._error(view.error)}
        return view.model_copy(update=changes)

    def summary(self, job: JobSummary) -> JobSummary:
        """Return a job in brief."""
        if self.hide is None:
            return job
        texts = {name: self.hide.hidden_in(getattr(job, name)) for name in ("reason", "error")}
        return job.model_copy(update=texts)

    def queue(self, view: QueueView) -> QueueView:
        """Return the queue, whose reasons may name folders."""
        if self.hide is None:
            return view
        told = [one.model_copy(update={"reason": self.hide.hidden_in(one.reason)}) for one in view.waiting]
        return view.model_copy(update={"waiting": told})

    def checkpoint(self, view: CheckpointView) -> CheckpointView:
        """Return a checkpoint, with its place."""
        return view.model_copy(update={"path": self._place(view.path, view.key)})

    def model(self, view: ModelView) -> ModelView:
        """Return an offered model, whose description may say that its folder is missing."""
        if self.hide is None:
            return view
        return view.model_copy(update={"description": self.hide.hidden_in(view.description)})

    def event(self, event: Event) -> Event:
        """Return an event. Observations of environments stay unchanged."""
        body, changes = event.body, dict[str, object]()
        if isinstance(body, CheckpointEvent):
            changes = {"path": self._place(body.path, body.key)}
        elif self.hide is None:
            return event
        elif isinstance(body, StateEvent):
            changes = {"reason": self.hide.hidden_in(body.reason), "error": self._error(body.error)}
        elif isinstance(body, WarningEvent):
            changes = {"message": self.hide.hidden_in(body.message)}
        return event.model_copy(update={"body": body.model_copy(update=changes)}) if changes else event

    def _place(self, path: str, key: str) -> str:
        """Return where a checkpoint's files are; records of earlier versions name a path instead of a key."""
        path = self.config.job_files.where(key) if key else path
        return path if self.hide is None else self.hide.hidden_in(path)

    def _error(self, error: ErrorView | None) -> ErrorView | None:
        if error is None or self.hide is None:
            return error
        texts = {name: self.hide.hidden_in(getattr(error, name)) for name in ("message", "hint")}
        return error.model_copy(update=texts)


def shown_to(request: Request, tenant: TenantStore) -> Shown:
    """Return the view for a tenant."""
    parts = parts_of(request)
    return Shown(parts.config, None if tenant.is_local_owner else parts.machine_paths)


def disk_trouble(config: ServiceConfig) -> str:
    """Return why the service can hardly write any more, as the rest of a sentence; empty if it can."""
    try:
        if shutil.disk_usage(config.data_dir).free < _FULL_BYTES:
            return "is full"
        # A file system that became read-only after an error does not always say so.
        with tempfile.TemporaryFile(dir=config.data_dir):
            return ""
    except OSError as error:
        return f"cannot be written ({error.strerror})"
