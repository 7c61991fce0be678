"""Jobs that use environment servers, judges or external models: who may, and what is stored about them."""

from __future__ import annotations

from typing import TypeVar

from backend.admission.opponents import with_models
from backend.config import ServiceConfig
from backend.external import judges, opponent_models
from backend.external.tokens import EnvTokens, without_token
from backend.external.urls import as_remote, is_remote, pinned
from tinkergym.schema.jobs.common import EvaluatedSpec, PlayedSpec
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.spec import JobSpec

Played = TypeVar("Played", bound=PlayedSpec)


def by_id(spec: JobSpec) -> JobSpec:
    """Return the job with a server address, given as the environment's id, in its full form."""
    if not isinstance(spec, PlayedSpec):
        return spec
    return spec.with_environments(as_remote)


def allowed(spec: Played, config: ServiceConfig) -> Played:
    """Return the job as the service would play it, with the server's address resolved.

    Raises:
        InvalidRequestError: The operator does not allow this server, a judge of the environment, or an
            external model.
    """
    check_evaluations(spec, config)
    if isinstance(spec, RLSpec) and spec.rollout == "server":
        opponent_models.check_listed(spec.external_models, config.opponent_urls)
    elif isinstance(spec, RLSpec):
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
        plays = spec.rollout == "server" if isinstance(spec, PlayedSpec) else not evaluation.is_local
        if plays:
            judges.check_listed(ref, config.judge_urls)


def to_store(spec: JobSpec, config: ServiceConfig, tenant_id: str) -> JobSpec:
    """Return the job for display: without the server's token."""
    if not isinstance(spec, PlayedSpec):
        return spec
    tokens, in_service = EnvTokens(config.tokens_dir), spec.rollout == "server"

    def stored(environment: EnvironmentRef) -> EnvironmentRef:
        if not is_remote(environment):
            return judges.put_away(environment, tokens, tenant_id)
        if in_service:
            return tokens.put_away(environment, tenant_id)
        return without_token(environment)

    if isinstance(spec, RLSpec):
        spec = with_models(spec, lambda model: opponent_models.put_away(model, tokens, tenant_id))
    return spec.with_environments(stored)
