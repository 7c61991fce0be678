"""Gathers what a person wants to know about a run, in a few requests."""

from __future__ import annotations

from tinkergym.display.run_overview import RunOverview
from tinkergym.remote.api import Api
from tinkergym.remote.event_stream import follow
from tinkergym.reporting.report import play_command_of
from tinkergym.schema.events import EpisodeEvent, JobState
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.names import LOCAL, local_name

_PATIENCE_SECONDS = 30.0


def overview_of(api: Api, view: JobView, *, points: int = 120, with_episodes: bool = False) -> RunOverview:
    """Return an overview of a run.

    Args:
        api: The service's API.
        view: The job.
        points: About how many points of each metric.
        with_episodes: Include the episodes in its log: the best and the worst of each step.
    """
    job_id = view.job_id
    checkpoints = api.checkpoints(job_id)
    return RunOverview(
        view=view,
        labels=api.labels(job_id),
        series=api.series(job_id, points=points),
        alarms=api.alarms(job_id),
        evaluations=api.evaluations(job_id),
        checkpoints=checkpoints,
        episodes=_logged_episodes(api, view) if with_episodes else [],
        next_commands=next_commands(view, has_checkpoint=bool(checkpoints)),
    )


def next_commands(view: JobView, *, has_checkpoint: bool) -> dict[str, str]:
    """Return what the owner of a job may type next, by its purpose."""
    job, state = view.job_id, view.state
    found: dict[str, str] = {}
    if state is JobState.WAITING_FOR_CLIENT:
        found["play on"] = how_to_play_on(view)
    elif state is JobState.PAUSED:
        found["continue"] = f"tinkergym jobs resume {job}"
    elif not state.final:
        found["watch"] = f"tinkergym jobs watch {job}"
    else:
        found["read its log"] = f"tinkergym jobs logs {job}"
    if has_checkpoint and view.spec.played:
        found["play with it"] = play_command_of(job, view.spec)
    if has_checkpoint:
        found["take it away"] = f"tinkergym export {job} FOLDER"
    if view.step:
        found["compare"] = f"tinkergym jobs compare {job} OTHER_JOB"
        found["as a web page"] = f"tinkergym jobs page {job} FOLDER"
    return found


def how_to_play_on(view: JobView) -> str:
    """Return the command or call that plays the episodes of a waiting job."""
    spec = view.spec
    if spec.by_calls:
        return f"Client.training_policy({view.job_id!r})"
    if spec.played_by == "script":
        return f"its script, with TrainRemotely(env, job_id={view.job_id!r})"
    own = "".join(
        f" --env MODULE:{local_name(env_id)}"
        for env_id in dict.fromkeys(one.id for one in spec.environments_played())
        if env_id.startswith(LOCAL)
    )
    return f"tinkergym jobs attach {view.job_id}{own}"


def _logged_episodes(api: Api, view: JobView) -> list[EpisodeEvent]:
    found: list[EpisodeEvent] = []
    events = follow(api.connection, view.job_id, patience_seconds=_PATIENCE_SECONDS)
    for event in events if view.last_seq else ():
        if isinstance(event.body, EpisodeEvent) and not event.body.repeated:
            found.append(event.body)
        if event.seq >= view.last_seq:
            break
    return found
