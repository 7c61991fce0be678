"""The gateway's routes as typed calls. Has no state and no threads."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from tinkergym.basics.written_files import writing_to
from tinkergym.errors import InternalServiceError, NotFoundError, UnknownModelError
from tinkergym.remote.transport import Connection, lines_of_chunks
from tinkergym.schema.adapter_upload import AdapterUpload
from tinkergym.schema.certificate import SignedFacts
from tinkergym.schema.evaluation import BranchRequest, EvaluationLine, EvaluationRequest
from tinkergym.schema.events import CheckpointView, EvaluationEvent, UpdateRequest
from tinkergym.schema.ids import PolicyRef, is_job_id
from tinkergym.schema.jobs.spec import JobSpec
from tinkergym.schema.jobs.training_spec import TrainingSpec
from tinkergym.schema.jobs.view import CLIENT_PACKS_HEADER, DeletedJob, InstalledPack, JobView
from tinkergym.schema.served_names import Promotion, ServedName, ServedNames
from tinkergym.schema.summaries import Alarm, EpisodeView, JobLabels, JobQuery, JobSummaries, RunSeries
from tinkergym.schema.uploaded_data import DataManifest, DataView
from tinkergym.schema.views import (
    EnvironmentView,
    HealthView,
    ModelView,
    PolicyView,
    RendererBundle,
    WantedRenderer,
)

View = TypeVar("View", bound=BaseModel)

FILE_SILENCE_SECONDS = 60.0
"""Of files, and of evaluations, which send an empty line every few seconds while nothing ends."""


class Api:
    """The gateway's API for users, one method per route."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def health(self, *, sample: bool = True, patience_seconds: float | None = None) -> HealthView:
        """Return whether the service responds, and what it is waiting for.

        Args:
            sample: Whether the service first samples from its models, which may take seconds.
            patience_seconds: How long to try again while the service does not respond.
        """
        params = None if sample else {"sample": "false"}
        body = self.connection.call("GET", "/v1/health", params=params, patience_seconds=patience_seconds)
        return _read(HealthView, body)

    def create_job(
        self, spec: JobSpec, *, idempotency_key: str, packs: Sequence[InstalledPack] = ()
    ) -> JobView:
        """Submit a job. The same key and spec give the same job, even if sent several times.

        Args:
            spec: The job.
            idempotency_key: Use a new one for each job.
            packs: Packs installed here, for a job that is played here.
        """
        # Headers must be ASCII; JSON escapes other characters in names and versions.
        known = json.dumps([pack.model_dump() for pack in packs])
        with _folders_of_the_service(spec.models()):
            body = self.connection.call(
                "POST",
                "/v1/jobs",
                body=spec.model_dump_json().encode(),
                headers={"Idempotency-Key": idempotency_key}
                | ({CLIENT_PACKS_HEADER: known} if packs else {}),
            )
        return _read(JobView, body)

    def job(self, job_id: str) -> JobView:
        """Return one job."""
        return self._get(JobView, _job_path(job_id))

    def jobs(self, query: JobQuery | None = None) -> JobSummaries:
        """List jobs in brief."""
        params = {} if query is None else query.model_dump(mode="json", exclude_defaults=True)
        return self._get(JobSummaries, "/v1/jobs", params)

    def labels(self, job_id: str) -> JobLabels:
        """Return the name, tags and note that its owner gave a job."""
        return self._get(JobLabels, f"{_job_path(job_id)}/labels")

    def set_labels(self, job_id: str, labels: JobLabels) -> JobLabels:
        """Replace the name, tags and note of a job, and whether lists leave it out."""
        body = labels.model_dump_json().encode()
        return _read(JobLabels, self.connection.call("POST", f"{_job_path(job_id)}/labels", body=body))

    def series(self, job_id: str, names: Sequence[str] = (), *, points: int = 400) -> RunSeries:
        """Return metrics of a run's train steps, each thinned to about `points`; those named, or all."""
        params = {"name": list(names), "points": str(points)}
        return self._get(RunSeries, f"{_job_path(job_id)}/series", params)

    def alarms(self, job_id: str) -> list[Alarm]:
        """Return what deserves a look in a run, the gravest first."""
        return self._list(Alarm, f"{_job_path(job_id)}/alarms", "alarms")

    def find_policy(self, reference: str) -> PolicyView:
        """Resolve a reference to its policy, its version, and the stored versions."""
        return self._get(PolicyView, "/v1/policies", {"reference": reference})

    def trained_policy(self, reference: PolicyRef) -> tuple[str, int | None, str]:
        """Return the job that trains a policy, the version number that a reference names, and the agent.

        None is the newest version; the agent is empty if the reference names none and the job trains one
        policy. Asks the service only if the reference does not contain job and version.

        Raises:
            NotFoundError: There is no such policy, or the version is not stored.
        """
        ref = reference
        if is_job_id(ref.owner) and (ref.is_newest or ref.version is not None):
            return ref.owner, ref.version, ref.agent
        if ref.version is not None:  # It may never have been saved.
            found = self.find_policy(ref.whose)
            return found.job_id, ref.version, found.agent
        found = self.find_policy(str(ref))
        return found.job_id, found.version, found.agent

    def cancel(self, job_id: str) -> JobView:
        """Ask a job to end. Repeating the call has no effect."""
        return _read(JobView, self.connection.call("POST", f"{_job_path(job_id)}/cancel"))

    def pause(self, job_id: str) -> JobView:
        """Ask a job to pause. Repeating the call has no effect."""
        return _read(JobView, self.connection.call("POST", f"{_job_path(job_id)}/pause"))

    def resume(self, job_id: str) -> JobView:
        """Queue a paused job again. A job that is not paused is unchanged."""
        return _read(JobView, self.connection.call("POST", f"{_job_path(job_id)}/resume"))

    def update(self, job_id: str, wanted: UpdateRequest) -> JobView:
        """Change settings of a job. Values that it already has are ignored."""
        body = wanted.model_dump_json().encode()
        return _read(JobView, self.connection.call("POST", f"{_job_path(job_id)}/update", body=body))

    def delete(self, job_id: str) -> DeletedJob:
        """Delete an ended job with its checkpoints."""
        return _read(DeletedJob, self.connection.call("DELETE", _job_path(job_id)))

    def promote(self, name: str, wanted: Promotion) -> ServedName:
        """Let a name serve a version of a policy. Repeating the call has no effect."""
        body = wanted.model_dump_json().encode()
        return _read(ServedName, self.connection.call("PUT", _name_path(name), body=body))

    def served_names(self) -> list[ServedName]:
        """List the names to which versions were promoted."""
        return self._get(ServedNames, "/v1/names").names

    def remove_name(self, name: str) -> list[ServedName]:
        """Remove a name; returns those that are left."""
        return _read(ServedNames, self.connection.call("DELETE", _name_path(name))).names

    def checkpoints(self, job_id: str) -> list[CheckpointView]:
        """List the stored checkpoints, oldest first."""
        found = self._list(CheckpointView, f"{_job_path(job_id)}/checkpoints", "checkpoints")
        return sorted(found, key=lambda checkpoint: checkpoint.step)

    def evaluations(self, job_id: str) -> list[EvaluationEvent]:
        """List the finished evaluations, in order."""
        return self._list(EvaluationEvent, f"{_job_path(job_id)}/evaluations", "evaluations")

    def facts(self, job_id: str) -> SignedFacts:
        """Fetch the facts for a run's certificate, as the operator signed them."""
        return self._get(SignedFacts, f"{_job_path(job_id)}/facts")

    def ledger(self, job_id: str) -> Iterator[bytes]:
        """Yield the outcome of each episode, one line of JSON per step."""
        return self._lines(f"{_job_path(job_id)}/ledger")

    def stored_episodes(
        self, job_id: str, *, first_step: int = 0, last_step: int | None = None
    ) -> Iterator[bytes]:
        """Yield the JSON of each stored episode, byte for byte as submitted, by step."""
        last = {} if last_step is None else {"last_step": str(last_step)}
        return self._lines(f"{_job_path(job_id)}/episodes", {"first_step": str(first_step), **last})

    def row_results(self, job_id: str, *, first_step: int = 1) -> Iterator[bytes]:
        """Yield the JSON of each row that an inference job has done, in order, from a step on."""
        return self._lines(f"{_job_path(job_id)}/results", {"first_step": str(first_step)})

    def download(self, job_id: str, step: int, name: str, target: Path, *, agent: str = "") -> str:
        """Stream one file of a checkpoint to `target` and return its SHA-256. A failure leaves no file.

        Raises:
            InvalidRequestError: `target` cannot be written.
        """
        path = f"{_job_path(job_id)}/checkpoints/{step}/files/{quote(name, safe='')}"
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        digest = hashlib.sha256()
        try:
            with (
                self.connection.stream(
                    "GET",
                    path,
                    params={"agent": agent} if agent else None,
                    timeout_seconds=FILE_SILENCE_SECONDS,
                ) as chunks,
                writing_to(target),
                part.open("wb") as file,
            ):
                for chunk in chunks:
                    digest.update(chunk)
                    file.write(chunk)
            with writing_to(target):
                part.replace(target)
        finally:
            with suppress(OSError):  # The target folder does not exist.
                part.unlink(missing_ok=True)
        return digest.hexdigest()

    def complete_data(self, manifest: DataManifest) -> DataView:
        """Create a dataset from uploaded chunks, or return which are missing."""
        body = manifest.model_dump_json().encode()
        return _read(DataView, self.connection.call("POST", "/v1/data", body=body))

    def put_chunk(self, sha256: str, body: bytes) -> None:
        """Upload a chunk of data. Repeating the call has no effect."""
        self.connection.call("PUT", f"/v1/data/chunks/{sha256}", body=body)

    def put_adapter_part(self, sha256: str, body: bytes) -> None:
        """Upload a part of an adapter. Repeating the call has no effect."""
        self.connection.call("PUT", f"/v1/adapters/parts/{sha256}", body=body)

    def add_adapter(self, wanted: AdapterUpload) -> JobView:
        """Make a policy of an adapter whose parts were uploaded."""
        with _folders_of_the_service({"model": wanted.model}):
            body = self.connection.call("POST", "/v1/adapters", body=wanted.model_dump_json().encode())
        return _read(JobView, body)

    def models(self) -> list[ModelView]:
        """List the service's models."""
        return self._list(ModelView, "/v1/models", "models")

    def environments(self) -> list[EnvironmentView]:
        """List the environments that the service can play."""
        return self._list(EnvironmentView, "/v1/environments", "environments")

    def episode(self, job_id: str, episode_id: str) -> EpisodeView:
        """Return one stored episode, and as what it was issued."""
        return self._get(EpisodeView, _episode_path(job_id, episode_id))

    def evaluate(self, wanted: EvaluationRequest) -> Iterator[EvaluationLine]:
        """Let the service play episodes; yields each as it ends."""
        return self._played("/v1/evaluations", wanted)

    def branch(self, job_id: str, episode_id: str, wanted: BranchRequest) -> Iterator[EvaluationLine]:
        """Let the service continue a stored episode; yields each continuation, under its number."""
        return self._played(f"{_episode_path(job_id, episode_id)}/branch", wanted)

    def _played(self, path: str, wanted: BaseModel) -> Iterator[EvaluationLine]:
        body = wanted.model_dump_json().encode()
        with self.connection.stream("POST", path, body=body, timeout_seconds=FILE_SILENCE_SECONDS) as chunks:
            for lines in lines_of_chunks(chunks):
                for line in filter(None, lines):
                    yield _read(EvaluationLine, line)

    def renderer_of(self, spec: TrainingSpec) -> RendererBundle:
        """Return the renderer of a job's own model, with the job's template, variables and date."""
        bundle = self.renderer(spec.model, spec.chat_template)
        return bundle.with_settings(spec.template_variables, spec.template_date)

    def renderer(self, model: str, chat_template: str = "") -> RendererBundle:
        """Fetch what turns messages into the model's token ids, with its own chat template or another."""
        with _folders_of_the_service({"model": model}):
            if chat_template:
                wanted = WantedRenderer(model=model, chat_template=chat_template)
                body = wanted.model_dump_json().encode()
                return _read(RendererBundle, self.connection.call("POST", "/v1/renderer", body=body))
            return self._get(RendererBundle, "/v1/renderer", {"model": model})

    def _lines(self, path: str, params: Mapping[str, str] | None = None) -> Iterator[bytes]:
        with self.connection.stream(
            "GET", path, params=params, timeout_seconds=FILE_SILENCE_SECONDS
        ) as chunks:
            for lines in lines_of_chunks(chunks):
                yield from lines

    def _get(self, view: type[View], path: str, params: Mapping[str, Any] | None = None) -> View:
        return _read(view, self.connection.call("GET", path, params=params))

    def _list(self, view: type[View], path: str, key: str) -> list[View]:
        answer = self.connection.call("GET", path)
        return _parsed(lambda: [view.model_validate(item) for item in _items(answer, key)])


@contextmanager
def _folders_of_the_service(models: Mapping[str, str]) -> Iterator[None]:
    """Improve the error for a model that the service cannot find but that is a folder here.

    Args:
        models: The models, by setting.
    """
    try:
        yield
    except UnknownModelError as error:
        here = Path(models.get(error.field, ""))
        # The service looked at this path already, so the path is not the problem.
        found = str(here.absolute()) in error.message or str(here.resolve()) in error.message
        if here.name and not here.is_absolute() and here.is_dir() and not found:
            error.hint = (
                "this folder exists here, but the service runs in another folder: give its absolute path "
                f"{str(here.resolve())!r} if the service is on this machine; {error.hint}"
            )
        raise


def _name_path(name: str) -> str:
    return f"/v1/names/{quote(name, safe='')}"


def _job_path(job_id: str) -> str:
    if not job_id or "/" in job_id:
        raise NotFoundError(f"there is no job {job_id!r}", hint="list yours with `tinkergym jobs`")
    return f"/v1/jobs/{quote(job_id, safe=':')}"


def _episode_path(job_id: str, episode_id: str) -> str:
    return f"{_job_path(job_id)}/episodes/{quote(episode_id, safe=':')}"


def _read(view: type[View], body: bytes) -> View:
    return _parsed(lambda: view.model_validate_json(body))


def _items(body: bytes, key: str) -> list[Any]:
    items: list[Any] = from_json(body)[key]
    return items


Parsed = TypeVar("Parsed")


def _parsed(read: Callable[[], Parsed]) -> Parsed:
    try:
        return read()
    except (ValidationError, ValueError, KeyError, TypeError) as error:
        raise InternalServiceError(
            f"the service's response cannot be read: {error}",
            hint="client and service may have different versions, or the URL may point to something else",
        ) from error
