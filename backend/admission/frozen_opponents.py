"""Resolve and check the frozen opponents of a game: which version of which policy plays a seat."""

from __future__ import annotations

from typing import TypeVar

from backend.external import judges
from backend.external.urls import is_remote
from backend.store.store import TenantStore
from tinkergym.errors import InvalidRequestError, NotFoundError
from tinkergym.schema.fixed_players import Frozen, PlayedAs, Replay
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.schema.jobs.training_spec import TrainingSpec

Job = TypeVar("Job", bound=TrainingSpec)


def with_definite_opponents(tenant: TenantStore, spec: Job) -> Job:
    """Return the job in which every frozen opponent has a version.

    Raises:
        NotFoundError: Such a policy is not this tenant's, or that version is not stored.
        InvalidRequestError: It is on another base model than the job, or a replayed job played other games.
    """
    played: PlayedSpec | None = spec.played
    if played is None:
        return spec
    for agent, seat in played.seats.items():
        if isinstance(seat, Replay):
            _refuse_other_games(tenant, played, agent, seat.job)
    return spec.with_players(
        lambda one, field: _definite(tenant, played, one, field) if isinstance(one, Frozen) else one
    )


def _definite(tenant: TenantStore, spec: PlayedSpec, frozen: Frozen, field: str) -> Frozen:
    ref = PolicyRef.parse(frozen.policy, field=field)
    found = tenant.find_policy(ref, field=field)
    if found.policy.model != spec.model:
        raise InvalidRequestError(
            f"{ref.whose} trained the model {found.policy.model!r}, but this job's seats use {spec.model!r}",
            hint=f"choose an opponent on this job's model, or set model={found.policy.model!r}",
            field=field,
        )
    trained = tenant.get_job(found.job_id).spec
    theirs = trained.for_agent(found.agent)
    played = theirs.played or spec
    as_trained = PlayedAs(
        rendered_by=trained.rendered_by(found.job_id, found.agent),
        temperature=theirs.sampling.temperature,
        max_turn_tokens=theirs.sampling.max_turn_tokens,
        system_prompt=played.system_prompt,
        reasoning=played.reasoning,
    )
    policy = str(ref.at(found.version(field=field)))
    return frozen.model_copy(update={"policy": policy, "played_as": as_trained})


def _without_secrets(ref: EnvironmentRef) -> EnvironmentRef:
    """Return a reference for comparison and display: a stored job has names instead of secrets."""
    shown = judges.without_key(ref)
    return shown.without_token() if is_remote(shown) else shown


def _refuse_other_games(tenant: TenantStore, spec: PlayedSpec, agent: str, job_id: str) -> None:
    """Refuse to replay a job whose games differ from this job's, or that has too few of them."""
    field = f"agents.{agent}"
    try:
        job = tenant.get_job(job_id)
    except NotFoundError as error:
        error.field = field
        raise
    theirs = job.spec
    if not theirs.played or agent not in theirs.learning_seats:
        raise InvalidRequestError(
            f"{job_id} did not train a policy at the seat {agent!r}",
            hint="use a job that did",
            field=field,
            code="not_trained",
        )
    if theirs.tools_of(theirs.policy_at(agent)) is not None:
        raise InvalidRequestError(
            f"{job_id} trained the seat {agent!r} with tools, whose calls are recorded like moves",
            hint="replay a job whose seat has no tools",
            field=field,
            code="has_tools",
        )
    same = {
        "environment": (_without_secrets(theirs.played.environment), _without_secrets(spec.environment)),
        "seed": (theirs.seed, spec.seed),
        "agents": (list(theirs.seats), list(spec.seats)),
        "algorithm.group_size": (theirs.played.groups.size, spec.groups.size),
        "algorithm.groups_per_step": (theirs.played.groups.count, spec.groups.count),
    }
    for name, (there, here) in same.items():
        if there != here:
            raise InvalidRequestError(
                f"{job_id} has {name} {there!r:.200}, but this job has {here!r:.200}, so their games differ",
                hint=f"use the same {name}",
                field=field,
                code="other_games",
            )
    if theirs.played.keep_episodes is not None and theirs.played.keep_episodes < job.step:
        raise InvalidRequestError(
            f"{job_id} only kept the actions of its last {theirs.played.keep_episodes} steps (keep_episodes)",
            hint="use a job that keeps all of its episodes",
            field=field,
        )
    if job.step < spec.steps:
        raise InvalidRequestError(
            f"{job_id} recorded {job.step} steps, but this job has {spec.steps}",
            hint=f"set steps to at most {job.step}",
            field=field,
            code="too_few_steps",
        )
