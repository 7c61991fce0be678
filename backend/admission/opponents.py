"""Resolve and check the frozen opponents of a game: which version of which policy plays a seat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from backend.external import judges
from backend.external.tokens import without_token
from backend.external.urls import is_remote
from backend.store.store import TenantStore
from tinkergym.errors import InvalidRequestError, NotFoundError
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.opponents import External, FixedPlayer, Frozen, League, PlayedAs

Seat = TypeVar("Seat")


def definite_opponents(tenant: TenantStore, spec: RLSpec) -> dict[str, Any]:
    """Return the settings in which every frozen opponent has a version.

    Raises:
        NotFoundError: Such a policy is not this tenant's, or that version is not stored.
        InvalidRequestError: It is on another base model than the job, or a replayed job played other games.
    """
    for agent, job_id in spec.replayed_jobs.items():
        _refuse_other_games(tenant, spec, agent, job_id)
    changes: dict[str, Any] = {}
    agents = {
        agent: _definite_league(tenant, spec, seat, f"agents.{agent}")
        if isinstance(seat, League)
        else _definite(tenant, spec, seat, f"agents.{agent}")
        if isinstance(seat, Frozen)
        else seat
        for agent, seat in spec.agents.items()
    }
    if agents != spec.agents:
        changes["agents"] = agents
    if any(isinstance(one.against, Frozen) for one in spec.evaluate):
        changes["evaluate"] = [
            one.model_copy(update={"against": _definite(tenant, spec, one.against, "evaluate.against")})
            if isinstance(one.against, Frozen)
            else one
            for one in spec.evaluate
        ]
    if isinstance(spec.self_play, League):
        changes["self_play"] = _definite_league(tenant, spec, spec.self_play, "self_play")
    return changes


def with_models(spec: RLSpec, change: Callable[[External], External]) -> RLSpec:
    """Return a job with each model that plays changed in the same way."""

    def seat(one: Seat) -> Seat:
        if isinstance(one, External):
            return change(one)  # type: ignore[return-value] # an External stays one
        if isinstance(one, League) and one.anchors:
            return one.model_copy(update={"anchors": [seat(anchor) for anchor in one.anchors]})
        return one

    if not spec.external_models:
        return spec
    return spec.model_copy(
        update={
            "agents": {agent: seat(one) for agent, one in spec.agents.items()},
            "self_play": seat(spec.self_play),
            "evaluate": [one.model_copy(update={"against": seat(one.against)}) for one in spec.evaluate],
        }
    )


def _definite_league(tenant: TenantStore, spec: RLSpec, league: League, field: str) -> League:
    if not league.anchors:
        return league
    return league.model_copy(update={"anchors": _all_definite(tenant, spec, league.anchors, field)})


def _all_definite(
    tenant: TenantStore, spec: RLSpec, players: Sequence[FixedPlayer], field: str
) -> list[FixedPlayer]:
    return [_definite(tenant, spec, one, field) if isinstance(one, Frozen) else one for one in players]


def _definite(tenant: TenantStore, spec: RLSpec, frozen: Frozen, field: str) -> Frozen:
    ref = PolicyRef.parse(frozen.policy, field=field)
    found = tenant.find_policy(ref, field=field)
    if found.policy.model != spec.model:
        raise InvalidRequestError(
            f"{ref.whose} trained the model {found.policy.model!r}, but this job's seats use {spec.model!r}",
            hint=f"choose an opponent on this job's model, or set model={found.policy.model!r}",
            field=field,
        )
    theirs = tenant.get_job(found.job_id).spec.for_agent(found.agent)
    played = theirs.played or spec
    as_trained = PlayedAs(
        rendered_by=theirs.rendered_by(found.job_id),
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
    return without_token(shown) if is_remote(shown) else shown


def _refuse_other_games(tenant: TenantStore, spec: RLSpec, agent: str, job_id: str) -> None:
    """Refuse to replay a job whose games differ from this job's, or that has too few of them."""
    field = f"agents.{agent}"
    try:
        job = tenant.get_job(job_id)
    except NotFoundError as error:
        error.field = field
        raise
    theirs = job.spec
    if not isinstance(theirs, RLSpec) or agent not in theirs.learning_seats:
        raise InvalidRequestError(
            f"{job_id} did not train a policy at the seat {agent!r}",
            hint="use a job that did",
            field=field,
        )
    if theirs.tools_of(theirs.policy_at(agent)) is not None:
        raise InvalidRequestError(
            f"{job_id} trained the seat {agent!r} with tools, whose calls are recorded like moves",
            hint="replay a job whose seat has no tools",
            field=field,
        )
    same = {
        "environment": (_without_secrets(theirs.environment), _without_secrets(spec.environment)),
        "seed": (theirs.seed, spec.seed),
        "agents": (list(theirs.agents), list(spec.agents)),
        "algorithm.group_size": (theirs.algorithm.group_size, spec.algorithm.group_size),
        "algorithm.groups_per_step": (theirs.algorithm.groups_per_step, spec.algorithm.groups_per_step),
    }
    for name, (there, here) in same.items():
        if there != here:
            raise InvalidRequestError(
                f"{job_id} has {name} {there!r:.200}, but this job has {here!r:.200}, so their games differ",
                hint=f"use the same {name}",
                field=field,
            )
    if theirs.keep_episodes is not None and theirs.keep_episodes < job.step:
        raise InvalidRequestError(
            f"{job_id} only kept the actions of its last {theirs.keep_episodes} steps (keep_episodes)",
            hint="use a job that keeps all of its episodes",
            field=field,
        )
    if job.step < spec.steps:
        raise InvalidRequestError(
            f"{job_id} recorded {job.step} steps, but this job has {spec.steps}",
            hint=f"set steps to at most {job.step}",
            field=field,
        )
