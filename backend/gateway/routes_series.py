"""What a run's page shows: metrics over the steps, and alarms."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import StringConstraints

from backend.gateway.dependencies import NumberQuery, Tenant
from backend.gateway.fair_threads import FairRoute
from backend.gateway.shown_views import shown_to
from backend.gateway.wiring import parts_of
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.events import EvaluationEvent
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.summaries import Alarm, Alarms, ChangedSettings, RunSeries

router = APIRouter(prefix="/v1/jobs", route_class=FairRoute)

_Name = Annotated[str, StringConstraints(max_length=500)]
_MOST_PATTERNS, _MOST_STARS = 50, 4
_GRAVEST = ("failed", "failed_episodes", "episodes_lost", "tokens_not_sampled")


@router.get("/{job_id}/series", response_model=RunSeries)
def show_series(
    request: Request,
    tenant: Tenant,
    *,
    job_id: str,
    name: Annotated[list[_Name] | None, Query(max_length=1000)] = None,
    points: Annotated[int, Query(ge=2, le=20_000)] = 400,
    first_step: NumberQuery = 0,
) -> Response:
    """Return metrics of a run's train steps, each thinned to about `points`; those named, or all.

    In a name, `*` stands for anything; at most 50 names have some, each at most 4.
    """
    tenant.get_job(job_id)
    stars = [one.count("*") for one in name or () if "*" in one]
    if len(stars) > _MOST_PATTERNS or max(stars, default=0) > _MOST_STARS:
        raise InvalidRequestError(
            f"at most {_MOST_PATTERNS} names may have a `*`, and each at most {_MOST_STARS}", field="name"
        )
    found = parts_of(request).runs.series(
        job_id, tenant.bodies_after, name or [], points, first_step=first_step
    )
    return Response(found.model_dump_json(), media_type="application/json")


@router.get("/{job_id}/alarms")
def show_alarms(request: Request, tenant: Tenant, job_id: str) -> Alarms:
    """Return what deserves a look in a run: its warnings, failed episodes, evaluations on trained tasks."""
    shown = shown_to(request, tenant)
    job = shown.job(tenant.get_job(job_id))
    runs = parts_of(request).runs
    alarms = runs.alarms(job_id, tenant.bodies_after)
    evaluations = runs.evaluations(job_id, tenant.bodies_after)
    if shown.hide is not None:
        alarms = [one.model_copy(update={"message": shown.hide.hidden_in(one.message)}) for one in alarms]
    found = [*_ended_badly(job), *_overlaps(evaluations), *alarms]
    found.sort(key=lambda one: (one.name not in _GRAVEST, -one.last_step))
    return Alarms(alarms=found)


def _ended_badly(job: JobView) -> list[Alarm]:
    if job.error is None:
        return []
    message = f"{job.error.message} {job.error.hint}".strip()
    at = job.step
    return [Alarm(name="failed", message=message, count=1, first_step=at, last_step=at, steps=[at])]


def _overlaps(evaluations: list[EvaluationEvent]) -> list[Alarm]:
    found = [one for one in evaluations if one.overlap]
    if not found:
        return []
    newest = found[-1]
    return [
        Alarm(
            name="evaluation_overlap",
            message=f"{newest.overlap:.0%} of the tasks of the evaluation {newest.name!r} are also trained "
            "on, so it does not measure how well the policy generalizes",
            count=len(found),
            first_step=found[0].step,
            last_step=newest.step,
            steps=[one.step for one in found][-50:],
        )
    ]


@router.get("/{job_id}/settings")
def show_settings(tenant: Tenant, job_id: str) -> ChangedSettings:
    """Return the settings of a job that differ from the defaults of its kind."""
    spec = tenant.get_job(job_id).spec
    return ChangedSettings(changed=spec.model_dump(mode="json", exclude_defaults=True))
