"""Records of a run: the facts for its certificate, its ledgers, and its stored episodes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from backend.gateway.dependencies import NumberQuery, Tenant
from backend.gateway.fair_threads import FairRoute
from backend.gateway.shown_views import shown_to
from backend.gateway.wiring import parts_of
from backend.store.blobs import MANIFEST, BlobMissingError, Blobs, checkpoint_key
from backend.store.kept_episodes import KeptEpisodes
from backend.store.step_files import RowResults
from tinkergym import __version__
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.certificate import (
    AdapterFacts,
    AgreementFacts,
    AttemptFacts,
    CheckpointFacts,
    PublishFacts,
    RunFacts,
    SignedFacts,
    StepFacts,
)

router = APIRouter(prefix="/v1/jobs", route_class=FairRoute)

_LINES = "application/x-ndjson"

Kind = TypeVar("Kind", bound=BaseModel)


@router.get("/{job_id}/facts", response_model=SignedFacts)
def show_facts(request: Request, tenant: Tenant, job_id: str) -> Response:
    """Return the facts recorded for a run's certificate, signed by the operator's key."""
    parts, shown = parts_of(request), shown_to(request, tenant)
    job = tenant.get_job(job_id)
    if job.spec.samples_only:
        raise InvalidRequestError(
            f"{job.job_id} trains nothing, so it has no certificate",
            hint="its completions are job.results()",
            field="job_id",
        )
    steps = _read(StepFacts, tenant.facts(job_id, "step"))
    found = RunFacts(
        job=shown.recorded(job),
        service_version=__version__,
        made_at=parts.clock(),
        attempts=_read(AttemptFacts, tenant.facts(job_id, "attempt")),
        publishes=_read(PublishFacts, tenant.facts(job_id, "publish")),
        agreements=_read(AgreementFacts, tenant.facts(job_id, "agreement")),
        adapters=_read(AdapterFacts, tenant.facts(job_id, "adapter")),
        steps=steps,
        not_learned=tenant.not_learned(job_id, frozenset(one.step for one in steps)),
        checkpoints=[
            CheckpointFacts(
                agent=one.agent,
                view=shown.checkpoint(one.view),
                manifest_sha256=_manifest_sha256(
                    parts.config.job_files, checkpoint_key(job.job_id, one.agent, one.view)
                ),
            )
            for one in tenant.checkpoint_facts(job_id)
        ],
        events=parts.event_chains.up_to_now(
            job_id,
            hides=shown.hide is not None,
            read=partial(tenant.events_after, job_id),
            shown=shown.event,
        ),
        data=job.spec.data_hashes,
    )
    # Serialized here, in a thread: those of a long run are megabytes.
    signed = SignedFacts(facts=found, signature=parts.operator_key.signature_of(found))
    return Response(signed.model_dump_json(), media_type="application/json")


@router.get("/{job_id}/ledger", response_class=StreamingResponse)
def stream_ledger(tenant: Tenant, job_id: str) -> StreamingResponse:
    """Stream the outcome of each episode, one line of JSON per step."""
    tenant.get_job(job_id)
    return StreamingResponse(_lines(tenant.ledgers(job_id)), media_type=_LINES)


@router.get("/{job_id}/episodes", response_class=StreamingResponse)
def stream_episodes(
    request: Request,
    tenant: Tenant,
    job_id: str,
    first_step: NumberQuery = 0,
    last_step: NumberQuery | None = None,
) -> StreamingResponse:
    """Stream the stored episodes as submitted, one line of JSON each, by step."""
    job_id = tenant.get_job(job_id).job_id  # Only a valid job id may name a folder.
    kept = KeptEpisodes(parts_of(request).config.job_files.below(job_id))
    found = tenant.stored_episodes(job_id, kept, first_step=first_step, last_step=last_step)
    return StreamingResponse(_lines(found), media_type=_LINES)


@router.get("/{job_id}/results", response_class=StreamingResponse)
def stream_results(
    request: Request, tenant: Tenant, job_id: str, first_step: NumberQuery = 1
) -> StreamingResponse:
    """Stream the results of an inference job so far, one line of JSON per row, in order."""
    job = tenant.get_job(job_id)
    if not job.spec.samples_only:
        raise InvalidRequestError(
            f"{job.job_id} is of kind {job.spec.kind!r}, which has no results", field="job_id"
        )
    found = RowResults(parts_of(request).config.job_files.below(job.job_id)).read(first_step, job.step)
    return StreamingResponse(_lines(found), media_type=_LINES)


def _manifest_sha256(job_files: Blobs, key: str) -> str:
    try:
        body = job_files.get(f"{key}/{MANIFEST}")
    except BlobMissingError:  # The job removed this checkpoint in the meantime.
        return ""
    return hashlib.sha256(body).hexdigest()


def _lines(bodies: Iterable[bytes]) -> Iterator[bytes]:
    for body in bodies:
        yield body + b"\n"


def _read(kind: type[Kind], bodies: Iterable[bytes]) -> list[Kind]:
    return [kind.model_validate_json(body) for body in bodies]
