"""MLflow: one run per job, on a tracking server."""

from __future__ import annotations

import os
import posixpath
import re
import warnings
from collections.abc import Mapping
from typing import Any

from tinkergym.errors import InvalidRequestError
from tinkergym.reporting.callbacks import package
from tinkergym.reporting.notes import Note
from tinkergym.reporting.points import Point
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.view import JobView

_TAG = "tinkergym.job_id"
_NOTE_TAG = "tinkergym.last_note"
_ALWAYS = "step_time"
"""A value that every point has; it shows which steps the server has."""
_ENDS = {JobState.COMPLETED: "FINISHED", JobState.FAILED: "FAILED", JobState.CANCELLED: "KILLED"}


_FORBIDDEN = re.compile(r"[^/\w.\- :]")
"""What MLflow does not allow in a metric's name. Ours are freer: `eval/math[digits=2]/mean`, `pass@1`."""
_LONGEST_NAME = 250


def allowed(values: Mapping[str, float]) -> dict[str, float]:
    """Return values under names that MLflow allows; two that would become equal stay apart."""
    found: dict[str, float] = {}
    for name, value in values.items():
        # MLflow also refuses what is not a normal relative path.
        clean = posixpath.normpath(_FORBIDDEN.sub("_", name)).lstrip("/.") or "_"
        clean, number = clean[:_LONGEST_NAME], 1
        while clean in found:
            number += 1
            clean = f"{clean[: _LONGEST_NAME - 5].removesuffix(f'_{number - 1}')}_{number}"
        found[clean] = value
    return found


class MlflowTracker:
    """Reports to a tracking server over HTTP only.

    Given a database or a folder, MLflow's client would open it directly and create or migrate tables with its
    own version. So these are refused.
    """

    def __init__(self, tracking_uri: str | None = None, *, experiment: str = "tinkergym") -> None:
        """Set the server.

        Args:
            tracking_uri: `http://...` or `https://...`; None uses MLFLOW_TRACKING_URI.
            experiment: Created if it is missing.

        Raises:
            InvalidRequestError: It is not the URL of a server.
            MissingExtraError: mlflow is not installed.
        """
        uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "")
        if not uri.startswith(("http://", "https://")):
            raise InvalidRequestError(
                f"the mlflow tracker needs the http(s) URL of a tracking server, not {uri or 'no address'}",
                hint="start one (mlflow server --port 5000) and set MLFLOW_TRACKING_URI=http://HOST:5000",
                field="report_to",
            )
        self._entities = package("mlflow.entities")
        self._client: Any = package("mlflow").MlflowClient(tracking_uri=uri, registry_uri=uri)
        self._experiment, self._run_id = experiment, ""
        self._last_note = 0
        self._keeps_files = True

    def begin(self, job: JobView) -> int:
        """Find or create the job's run; return its last step."""
        client = self._client
        known = client.get_experiment_by_name(self._experiment)
        experiment_id = known.experiment_id if known else client.create_experiment(self._experiment)
        found = client.search_runs([experiment_id], f"tags.`{_TAG}` = '{job.job_id}'", max_results=1)
        if found:
            self._run_id = found[0].info.run_id
            self._last_note = int(found[0].data.tags.get(_NOTE_TAG, 0))
            client.update_run(self._run_id, status="RUNNING")
            history = client.get_metric_history(self._run_id, _ALWAYS)
            return max((metric.step for metric in history), default=0)
        tags = {_TAG: job.job_id, "tinkergym.kind": job.spec.kind, "tinkergym.model": job.spec.model}
        run = client.create_run(experiment_id, run_name=job.spec.name or job.job_id, tags=tags)
        self._run_id = run.info.run_id
        return 0

    def report(self, point: Point) -> None:
        """Send the values in one call, which the server applies atomically."""
        metrics = self._metrics(point.values, time=point.time, step=point.step)
        self._client.log_batch(self._run_id, metrics=metrics)

    def last_note(self) -> int:
        """Return the number of the last note that the run has."""
        return self._last_note

    def tell(self, note: Note) -> None:
        """Keep a completion as `completions/`, anything else as `notes/`, and send an evaluation's numbers.

        The file has a name of its own, so one that is sent again replaces itself.
        """
        folder = "completions" if note.kind == "completion" else "notes"
        content = {"step": note.step, "time": note.time, "kind": note.kind, "text": note.text, **note.row}
        self._keep(content, f"{folder}/{note.seq:08d}.json")
        metrics = self._metrics(note.values, time=note.time, step=note.step)
        tags = [self._entities.RunTag(_NOTE_TAG, str(note.seq))]
        self._client.log_batch(self._run_id, metrics=metrics, tags=tags)

    def _keep(self, content: dict[str, Any], name: str) -> None:
        if not self._keeps_files:
            return
        try:
            self._client.log_dict(self._run_id, content, name)
        except Exception as error:  # Files go to a store of their own, which may be unreachable from here.
            self._keeps_files = False
            warnings.warn(
                f"the MLflow server does not take files, so it gets no more completions and notes, only "
                f"numbers: {type(error).__name__}: {error}",
                stacklevel=2,
            )

    def _metrics(self, values: Mapping[str, float], *, time: float, step: int) -> list[Any]:
        millis = int(time * 1000)
        return [self._entities.Metric(name, value, millis, step) for name, value in allowed(values).items()]

    def end(self, state: JobState | None) -> None:
        """Report how the run ended; a run that continues stays open."""
        if state is not None:
            self._client.set_terminated(self._run_id, status=_ENDS[state])
