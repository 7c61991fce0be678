"""Stored episodes to look at: many in brief, and one whole."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from backend.episodes.logprob_gaps import read_gaps
from backend.gateway.dependencies import NumberQuery, Tenant
from backend.gateway.episode_index import EpisodeIndex, EpisodeRow, RowPage, alike, rows_of, says
from backend.gateway.fair_threads import FairRoute
from backend.gateway.issued_requests import issued
from backend.gateway.opponent_results import opponent_results
from backend.gateway.wiring import parts_of
from backend.store.blobs import Blobs
from backend.store.kept_episodes import KeptEpisodes
from backend.store.store import TenantStore
from tinkergym.errors import ConflictError, NotFoundError, NotReplayableError
from tinkergym.schema.episodes import EpisodeRequest, EpisodeResult
from tinkergym.schema.ids import EpisodeId
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.summaries import EpisodePage, EpisodeView, GroupMember, OpponentResults, TokenTexts
from tinkergym.trajectory.call_tree import turn_parents
from tinkergym.trajectory.trajectory import Trajectory

router = APIRouter(prefix="/v1/jobs", route_class=FairRoute)

_PAGE_SECONDS = 0.5
"""After so long a page ends, however few rows it has."""


@router.get("/{job_id}/episodes/rows", response_model=EpisodePage)
def list_rows(
    request: Request,
    tenant: Tenant,
    *,
    job_id: str,
    before: NumberQuery | None = None,
    first_step: NumberQuery = 0,
    limit: Annotated[int, Query(ge=1, le=20_000)] = 2000,
    text: Annotated[str, Query(max_length=200)] = "",
    like: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """List stored episodes in brief, whole steps at a time, newest first, from the step below `before` on.

    With `text`, only those in which the environment, the policy or an error said it; with `like`, an
    episode's id, only those that began as it did, which are those of its task. A page may be short, or even
    empty, before the end: `next_before` says where the next begins.
    """
    run = _run(request, tenant, job_id)
    steps = [
        step for step in reversed(run.steps()) if step >= first_step and (before is None or step < before)
    ]
    begun = run.beginnings(like) if like else None
    page, until = RowPage(), time.monotonic() + _PAGE_SECONDS
    read = 0
    for step in steps:
        if len(page) >= limit or (read and time.monotonic() > until):
            break
        for row in alike(run.rows(step, text), begun):
            page.add(step, row, run.environment(step, row.index) if run.spec.environments else "")
        read += 1
    found = EpisodePage(
        rows=page.rows,
        next_before=steps[read - 1] if read < len(steps) else None,
        steps=len(steps),
        read=read,
        group_size=run.spec.groups.size,
    )
    return Response(found.model_dump_json(), media_type="application/json")


@router.get("/{job_id}/opponents", response_model=OpponentResults)
def show_opponents(request: Request, tenant: Tenant, job_id: str) -> Response:
    """Return the returns of a run's trained seats against each kind of opponent, over training.

    From the steps that can be read within the time; with `more`, the next call reads further ones.
    """
    run, until = _run(request, tenant, job_id), time.monotonic() + _PAGE_SECONDS
    found = opponent_results(run.spec, run.steps(), run.rows, is_recorded=run.is_recorded, until=until)
    return Response(found.model_dump_json(), media_type="application/json")


@router.get("/{job_id}/episodes/{episode_id}", response_model=EpisodeView)
def show_episode(request: Request, tenant: Tenant, job_id: str, episode_id: str) -> Response:
    """Return a stored episode with the text of each token, its group, and what became of it in training."""
    run, found = _run(request, tenant, job_id), EpisodeId.find(episode_id)
    result = None
    if found is not None and found.job.job_id == job_id:
        bodies = tenant.episodes_of_step(job_id, run.kept, found.step)
        mark = b'"episode_id":"%s"' % episode_id.encode()
        result = next((body for body in bodies if mark in body[: len(mark) + 10]), None)
    if found is None or result is None:
        raise NotFoundError(
            f"{job_id} has no stored episode {episode_id!r:.200}",
            hint="it may still be played, or `keep_episodes` has removed it",
        )
    episode, size = EpisodeResult.model_validate_json(result), run.spec.groups.size
    group = [row for row in run.rows(found.step) if row.index // size == found.index // size and row.trained]
    fates = tenant.fates(job_id, found.step)
    issued_as, why_not = _issued(request, run.spec, episode)
    view = EpisodeView(
        episode=episode,
        step=found.step,
        index=found.index,
        environment=run.environment(found.step, found.index),
        system_prompt=run.spec.system_prompt or run.spec.environment_prompt or "",
        group_number=found.index // size,
        fate=next((one for one in fates if one.episode_id == episode_id), None),
        group=[_member(row) for row in group],
        texts={one.agent: _texts(request, run.spec, one) for one in episode.trajectories},
        logprob_gaps=read_gaps(run.files, found.step, found.index, episode.trajectories),
        parents=_parents(episode.trajectories),
        request=issued_as,
        why_no_request=why_not,
    )
    return Response(view.model_dump_json(), media_type="application/json")


@dataclass(frozen=True, slots=True)
class _Run:
    """A job whose policy played episodes."""

    tenant: TenantStore
    job: JobView
    spec: PlayedSpec
    files: Blobs
    kept: KeptEpisodes
    index: EpisodeIndex

    def rows(self, step: int, text: str = "") -> tuple[EpisodeRow, ...]:
        """Return a step's episodes in brief; with a text, those that say it."""
        job_id = self.job.job_id
        read = partial(self.tenant.episodes_of_step, job_id, self.kept, step)
        if text:
            found = (row for body in read() if says(body, text) for row in rows_of(body))
            return tuple(sorted(found, key=lambda row: (row.index, row.agent)))
        return self.index.of_step(job_id, step, read, is_recorded=self.is_recorded(step))

    def beginnings(self, like: str) -> set[tuple[str, int]]:
        """Return how the trained seats of one of its episodes began."""
        found = EpisodeId.parse(like)
        own = [row for row in self.rows(found.step) if row.index == found.index and row.trained]
        return {(row.agent, row.opening) for row in own if row.opening}

    def is_recorded(self, step: int) -> bool:
        """Whether no episode can be added to a step any more."""
        return self.job.state.final or step < self.job.step

    def steps(self) -> list[int]:
        """Return the steps with stored episodes, in order."""
        read = partial(self.tenant.episode_steps, self.job.job_id, self.kept)
        return self.index.steps(self.job.job_id, read, is_over=self.job.state.final)

    def environment(self, step: int, index: int) -> str:
        """Return the id of the environment that an episode played."""
        return self.spec.environment_at(step, index // self.spec.groups.size).id


def _run(request: Request, tenant: TenantStore, job_id: str) -> _Run:
    job, parts = tenant.get_job(job_id), parts_of(request)
    if not isinstance(job.spec, PlayedSpec):
        raise ConflictError(f"{job_id} is of kind {job.spec.kind!r} and plays no episodes")
    files = parts.config.job_files.below(job.job_id)
    kept = KeptEpisodes(files)
    return _Run(tenant, job, job.spec, files, kept, parts.episode_rows)


def _issued(request: Request, spec: PlayedSpec, episode: EpisodeResult) -> tuple[EpisodeRequest | None, str]:
    """Return as what an episode was issued, or why that is not known."""
    try:
        return issued(spec, episode, parts_of(request).config.job_files), ""
    except (NotReplayableError, NotFoundError) as error:
        return None, error.message


def _texts(request: Request, spec: PlayedSpec, seat: Trajectory) -> TokenTexts:
    model = spec.for_agent(seat.agent).model if seat.agent in spec.trained_agents else spec.model
    return parts_of(request).token_texts.texts(model, [one.token_ids for one in seat.segments])


def _parents(seats: Sequence[Trajectory]) -> dict[str, list[int | None]]:
    """Return whose turns form a tree: one that branches, or begins a conversation again."""
    found = {one.agent: turn_parents(one) for one in seats if len(one.segments) > 1}
    return {
        agent: parents
        for agent, parents in found.items()
        if any(parent != (number - 1 if number else None) for number, parent in enumerate(parents))
    }


def _member(row: EpisodeRow) -> GroupMember:
    return GroupMember(
        index=row.index,
        agent=row.agent,
        episode_return=row.episode_return,
        completed=row.completed,
        stop_reason=row.stop_reason,
    )
