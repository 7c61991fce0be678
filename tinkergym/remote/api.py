"""The gateway's routes as typed calls. No state, no threads; everything above it is convenience."""

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

from tinkergym.errors import InternalServiceError, NotFoundError, UnknownModelError
from tinkergym.remote.target_files import writing_to
from tinkergym.remote.transport import Connection
from tinkergym.schema.certificate import RunFacts
from tinkergym.schema.data import DataManifest, DataView
from tinkergym.schema.evaluation import EvaluationLine, EvaluationRequest
from tinkergym.schema.events import CheckpointView, EvaluationEvent
from tinkergym.schema.jobs import CLIENT_PACKS_HEADER, AnyJobSpec, DeletedJob, InstalledPack, JobView
from tinkergym.schema.policy_refs import PolicyRef
from tinkergym.schema.updates import UpdateRequest
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


class Api:
    """What the gateway offers to a user, one method per route."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def health(self, *, patience_seconds: float | None = None) -> HealthView:
        """Whether the service answers, and what it waits for."""
        return _read(HealthView, self.connection.call("GET", "/v1/health", patience_seconds=patience_seconds))

    def create_job(
        self, spec: AnyJobSpec, *, idempotency_key: str, packs: Sequence[InstalledPack] = ()
    ) -> JobView:
        """Submit a job; the same key and spec name the same job, however often they are sent.

        Args:
            spec: The job.
            idempotency_key: A new one for each job.
            packs: What is installed here, for a job that is played here.
        """
        # ASCII, as all headers are: names and versions that are not are written as JSON escapes them.
        known = json.dumps([pack.model_dump() for pack in packs])
        with _folders_of_the_service({"model": spec.model, "teacher": getattr(spec, "teacher", "")}):
            body = self.connection.call(
                "POST",
                "/v1/jobs",
                body=spec.model_dump_json().encode(),
                headers={"Idempotency-Key": idempotency_key}
                | ({CLIENT_PACKS_HEADER: known} if packs else {}),
            )
        return _read(JobView, body)

    def job(self, job_id: str) -> JobView:
        """Show one job."""
        return self._get(JobView, _job_path(job_id))

    def jobs(self, *, limit: int = 50, before: str = "") -> list[JobView]:
        """List jobs, newest first, from the one before `before` on."""
        params = {"limit": str(limit)} | ({"before": before} if before else {})
        return self._list(JobView, "/v1/jobs", "jobs", params)

    def find_policy(self, reference: str) -> PolicyView:
        """Say which policy a reference names, which version, and which are kept."""
        return self._get(PolicyView, "/v1/policies", {"reference": reference})

    def job_and_version(self, reference: PolicyRef) -> tuple[str, int | None]:
        """Return the job that trains a policy, and the number of the version that a reference names.

        None is the newest version. Asks the service only where the reference does not say both itself.

        Raises:
            NotFoundError: There is no such policy, or no such version is kept.
        """
        ref = reference
        if ref.owner.startswith("job-") and not ref.agent and (ref.is_newest or ref.version is not None):
            return ref.owner, ref.version
        if ref.version is not None:  # which may be one that was never saved
            return self.find_policy(ref.whose).job_id, ref.version
        found = self.find_policy(str(ref))
        return found.job_id, found.version

    def cancel(self, job_id: str) -> JobView:
        """Ask a job to end; asking twice changes nothing."""
        return _read(JobView, self.connection.call("POST", f"{_job_path(job_id)}/cancel"))

    def pause(self, job_id: str) -> JobView:
        """Ask a job to pause; asking twice changes nothing."""
        return _read(JobView, self.connection.call("POST", f"{_job_path(job_id)}/pause"))

    def resume(self, job_id: str) -> JobView:
        """Queue a paused job again; another one stays as it is."""
        return _read(JobView, self.connection.call("POST", f"{_job_path(job_id)}/resume"))

    def update(self, job_id: str, wanted: UpdateRequest) -> JobView:
        """Change settings of a job; those that it has already are no change."""
        body = wanted.model_dump_json().encode()
        return _read(JobView, self.connection.call("POST", f"{_job_path(job_id)}/update", body=body))

    def delete(self, job_id: str) -> DeletedJob:
        """Delete an ended job with its checkpoints."""
        return _read(DeletedJob, self.connection.call("DELETE", _job_path(job_id)))

    def checkpoints(self, job_id: str) -> list[CheckpointView]:
        """List the checkpoints that are still there, oldest first."""
        found = self._list(CheckpointView, f"{_job_path(job_id)}/checkpoints", "checkpoints")
        return sorted(found, key=lambda checkpoint: checkpoint.step)

    def evaluations(self, job_id: str) -> list[EvaluationEvent]:
        """List the evaluations on the way that are done, in order."""
        return self._list(EvaluationEvent, f"{_job_path(job_id)}/evaluations", "evaluations")

    def facts(self, job_id: str) -> RunFacts:
        """Fetch what was recorded of a run for its certificate."""
        return self._get(RunFacts, f"{_job_path(job_id)}/facts")

    def ledger(self, job_id: str) -> Iterator[bytes]:
        """Yield what became of each episode, one line of JSON per step."""
        return self._lines(f"{_job_path(job_id)}/ledger")

    def stored_episodes(
        self, job_id: str, *, first_step: int = 0, last_step: int | None = None
    ) -> Iterator[bytes]:
        """Yield each stored episode's JSON, to the byte as it was handed in, by step."""
        last = {} if last_step is None else {"last_step": str(last_step)}
        return self._lines(f"{_job_path(job_id)}/episodes", {"first_step": str(first_step), **last})

    def download(self, job_id: str, step: int, name: str, target: Path, *, agent: str = "") -> str:
        """Stream one file of a checkpoint to `target` and return its SHA-256; a broken one leaves nothing.

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
            with suppress(OSError):  # no folder that a file could be in
                part.unlink(missing_ok=True)
        return digest.hexdigest()

    def complete_data(self, manifest: DataManifest) -> DataView:
        """Make a data set of chunks that were sent, or hear which are missing."""
        body = manifest.model_dump_json().encode()
        return _read(DataView, self.connection.call("POST", "/v1/data", body=body))

    def put_chunk(self, sha256: str, body: bytes) -> None:
        """Send a chunk of data; sending it twice changes nothing."""
        self.connection.call("PUT", f"/v1/data/chunks/{sha256}", body=body)

    def models(self) -> list[ModelView]:
        """List the models that the service offers by name."""
        return self._list(ModelView, "/v1/models", "models")

    def environments(self) -> list[EnvironmentView]:
        """List the environments that the service can play itself."""
        return self._list(EnvironmentView, "/v1/environments", "environments")

    def evaluate(self, wanted: EvaluationRequest) -> Iterator[EvaluationLine]:
        """Have the service play episodes; each is yielded as it ends."""
        body = wanted.model_dump_json().encode()
        rest = b""
        with self.connection.stream(
            "POST", "/v1/evaluations", body=body, timeout_seconds=FILE_SILENCE_SECONDS
        ) as chunks:
            for chunk in chunks:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in filter(None, lines):
                    yield _read(EvaluationLine, line)

    def renderer(self, model: str, chat_template: str = "") -> RendererBundle:
        """Fetch what turns messages into the model's token ids, by its own chat template or another."""
        with _folders_of_the_service({"model": model}):
            if chat_template:
                wanted = WantedRenderer(model=model, chat_template=chat_template)
                body = wanted.model_dump_json().encode()
                return _read(RendererBundle, self.connection.call("POST", "/v1/renderer", body=body))
            return self._get(RendererBundle, "/v1/renderer", {"model": model})

    def _lines(self, path: str, params: Mapping[str, str] | None = None) -> Iterator[bytes]:
        rest: list[bytes] = []
        with self.connection.stream(
            "GET", path, params=params, timeout_seconds=FILE_SILENCE_SECONDS
        ) as chunks:
            for chunk in chunks:
                first, *others = chunk.split(b"\n")
                rest.append(first)
                for line in others:
                    yield b"".join(rest)
                    rest = [line]

    def _get(self, view: type[View], path: str, params: Mapping[str, str] | None = None) -> View:
        return _read(view, self.connection.call("GET", path, params=params))

    def _list(
        self, view: type[View], path: str, key: str, params: Mapping[str, str] | None = None
    ) -> list[View]:
        answer = self.connection.call("GET", path, params=params)
        return _parsed(lambda: [view.model_validate(item) for item in _items(answer, key)])


@contextmanager
def _folders_of_the_service(models: Mapping[str, str]) -> Iterator[None]:
    """Say of a model that the service does not find, and that is a folder here, what it is called there.

    Args:
        models: By the setting that names them.
    """
    try:
        yield
    except UnknownModelError as error:
        here = Path(models.get(error.field, ""))
        # Where it looked there already, the path is not what is wrong.
        found = str(here.absolute()) in error.message or str(here.resolve()) in error.message
        if here.name and not here.is_absolute() and here.is_dir() and not found:
            error.hint = (
                "that folder is here, and the service looks from a folder of its own: give its absolute path "
                f"{str(here.resolve())!r} if the service is on this machine; {error.hint}"
            )
        raise


def _job_path(job_id: str) -> str:
    if not job_id or "/" in job_id:
        raise NotFoundError(f"no job is called {job_id!r}", hint="list yours with `tinkergym jobs`")
    return f"/v1/jobs/{quote(job_id, safe=':')}"


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
            f"the service's answer cannot be read: {error}",
            hint="client and service are of different versions, or the URL points to something else",
        ) from error
