"""Jobs that use environment servers, judges or external models: who may, and what is stored about them."""

from __future__ import annotations

from typing import TypeVar

from backend.admission.facts import Facts
from backend.config import ServiceConfig
from backend.external import judges, opponent_models
from backend.external.environment_tokens import put_away
from backend.external.urls import as_remote, is_remote, pinned
from tinkergym.schema.fixed_players import External, FixedPlayer
from tinkergym.schema.jobs.evaluated_spec import EvaluatedSpec
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.schema.jobs.spec import JobSpec

Played = TypeVar("Played", bound=PlayedSpec)


def by_id(spec: JobSpec) -> JobSpec:
    """Return the job with a server address, given as the environment's id, in its full form."""
    return spec.played.with_environments(as_remote) if spec.played else spec


def allowed(spec: Played, config: ServiceConfig) -> Played:
    """Return the job as the service would play it, with the server's address resolved.

    Raises:
        InvalidRequestError: The operator does not allow this server, a judge of the environment, or an
            external model.
    """
    check_evaluations(spec, config)
    if spec.rollout == "server":
        opponent_models.check_listed(spec.external_models, config.opponent_urls)
    else:
        opponent_models.refuse_keys(spec.external_models)
    # What a client plays, it reaches from where it is.
    if spec.rollout != "server":
        for environment in spec.own_environments.values():
            judges.refuse_key(environment)
        return spec
    for environment in spec.own_environments.values():
        judges.check_listed(environment, config.judge_urls)
    return spec.with_environments(lambda one: pinned(one, config.environment_urls) if is_remote(one) else one)


def check_evaluations(spec: EvaluatedSpec, config: ServiceConfig) -> None:
    """Refuse secrets in the arguments of evaluations, which are stored unchanged, and disallowed judges.

    Evaluations use the judge of the job's own environment, including its key.

    Raises:
        InvalidRequestError: There is one.
    """
    for evaluation in spec.evaluate:
        ref = EnvironmentRef(id=spec.name_of(evaluation), kwargs=evaluation.env_kwargs)
        judges.refuse_key(ref)
        if spec.played_by == "server":
            judges.check_listed(ref, config.judge_urls)


def secrets_are_put_away(spec: JobSpec, facts: Facts) -> JobSpec:
    """Return the job for the store: with the names of tokens and keys instead of them."""
    played = spec.played
    if played is None:
        return spec
    store, in_service = facts.tenant, played.rollout == "server"

    def stored(environment: EnvironmentRef) -> EnvironmentRef:
        if not is_remote(environment):
            return judges.put_away(environment, store)
        if in_service:
            return put_away(environment, store)
        return environment.without_token()

    def player(one: FixedPlayer, field: str) -> FixedPlayer:
        del field
        return opponent_models.put_away(one, store) if isinstance(one, External) else one

    return played.with_players(player).with_environments(stored)
