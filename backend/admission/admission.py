"""Whether a submitted job may run: an ordered list of checks, from the cheapest to the most expensive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from backend.admission.bounds import (
    engine_can_sample,
    learner_can_train,
    models_are_offered,
    models_have_a_place,
    quantized_bases_train_adapters,
    tools_are_installed,
)
from backend.admission.facts import Check, Facts, JobCheck, ModelCatalog
from backend.admission.model_inputs import datasets_fit, template_is_settled
from backend.admission.origins import origins_are_definite
from backend.admission.remote_environments import allowed, by_id, check_evaluations, secrets_are_put_away
from backend.config import ServiceConfig
from backend.settings.gateway_limits import GatewayLimits
from backend.store.tenant import TenantStore
from tinkergym.errors import PayloadTooLargeError
from tinkergym.schema.events import ErrorView
from tinkergym.schema.jobs.evaluated_spec import EvaluatedSpec
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.schema.jobs.spec import JobSpec
from tinkergym.schema.refusals import Refusal


def environments_can_be_played(spec: JobSpec, facts: Facts) -> JobSpec | Refusal:
    """Make the environments that the service plays, and note what only they tell."""
    tenant_id, played = facts.tenant.tenant_id, spec.played
    if played is None:
        if not isinstance(spec, EvaluatedSpec):
            return spec
        check_evaluations(spec, facts.config)
        if spec.played_by != "server":
            return spec
        return spec.with_evaluated_tasks(facts.job_check.check_evaluations(spec, tenant_id))
    found = facts.job_check.check(allowed(played, facts.config), tenant_id)
    facts.packs.update({**found.packs, **played.algorithm_packs()})
    if played.rollout != "server":
        if played.plays_game and not played.seats:
            return Refusal(
                "agents",
                "the service does not know the agents of a game that the client plays",
                "list them in agents: one with tg.Train, the others with tg.opponents.SharedWith",
                "agents_of_a_client",
            )
        return spec
    recorded = {
        "environment_prompt": found.environment_prompt,
        "environment_variables": found.environment_variables,
        "environment_data": found.data,
    }
    noted = played.model_copy(update=recorded).with_evaluated_tasks(found.evaluated)
    noted = noted if isinstance(noted, Refusal) else noted.with_group_rewards(found.group_rewards)
    return noted if isinstance(noted, Refusal) else noted.seated(found.agents, found.offered)


CHECKS: tuple[Check, ...] = (
    models_are_offered,
    models_have_a_place,
    quantized_bases_train_adapters,
    tools_are_installed,
    engine_can_sample,
    learner_can_train,
    origins_are_definite,
    template_is_settled,
    datasets_fit,
    environments_can_be_played,
    secrets_are_put_away,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Checks jobs of any tenant."""

    config: ServiceConfig
    catalog: ModelCatalog
    job_check: JobCheck
    refusals: Callable[[], Mapping[str, ErrorView]] = dict
    """See `Facts.refusals`."""

    def check(self, tenant: TenantStore, spec: JobSpec) -> tuple[JobSpec, dict[str, str]]:
        """Return the job as it is stored, and the versions of its packs.

        Raises:
            TinkerGymError: The job is refused, with the reason.
        """
        facts = Facts(
            config=self.config,
            tenant=tenant,
            catalog=self.catalog,
            job_check=self.job_check,
            refusals=self.refusals,
        )
        for check in CHECKS:
            found = check(spec, facts)
            if isinstance(found, Refusal):
                raise found.error()
            spec = found
        return spec, facts.packs


def readable(spec: JobSpec, config: ServiceConfig) -> JobSpec:
    """Return a job as its client meant it, if the service could run it without looking at anything.

    Raises:
        PayloadTooLargeError: Its description is too large.
        InvalidRequestError: It would take memory or time from others, or needs workers that do not exist.
    """
    spec = by_id(spec)
    if len(spec.model_dump_json()) > config.limits.job_bytes:
        raise description_too_large(config.limits)
    refusal = _unplayed(spec, config) or (spec.played and _too_many(spec.played, config.limits))
    if refusal:
        raise refusal.error()
    return spec


def _unplayed(spec: JobSpec, config: ServiceConfig) -> Refusal | None:
    """Refuse jobs whose episodes the service would have to play, if it plays none."""
    if config.env_workers or spec.played_by != "server":
        return None
    reason = "this service does not play episodes"
    if spec.played:
        hint = "play them in your own process with rollout='client', or ask the operator to raise env_workers"
        return Refusal("rollout", reason, hint, "no_env_workers")
    hint = "leave out evaluate, or ask the operator to raise env_workers"
    return Refusal("evaluate", f"{reason}, so it cannot evaluate the job", hint, "no_env_workers")


def _too_many(spec: PlayedSpec, limits: GatewayLimits) -> Refusal | None:
    """Refuse more episodes at a time than the service holds."""
    groups = spec.groups
    if groups.most_episodes > limits.episodes_per_step:
        return Refusal(
            groups.fields[groups.episodes <= limits.episodes_per_step],
            f"{groups.most_episodes} episodes per step (in RL jobs group_size * groups_per_step, and as many "
            f"for each of dynamic_sampling_rounds) exceed the service's limit of {limits.episodes_per_step}",
            "use fewer, or ask the operator to raise limits.episodes_per_step",
            "too_many_episodes",
        )
    if spec.deterministic and spec.rollout == "client" and groups.episodes > limits.samples_in_flight:
        # In lockstep nothing is answered before all requests have arrived, so the last ones would be refused
        # forever.
        return Refusal(
            "deterministic",
            f"the {groups.episodes} episodes of a step of a deterministic job are sampled together, but the "
            f"service allows {limits.samples_in_flight} sampling requests of a tenant at a time",
            "use fewer episodes, let the service play them, or ask the operator to raise "
            "limits.samples_in_flight",
            "too_many_in_lockstep",
        )
    return None


def description_too_large(limits: GatewayLimits) -> PayloadTooLargeError:
    """Return the error for a job whose description is too large."""
    return PayloadTooLargeError(
        f"the job's description is larger than {limits.job_bytes} bytes",
        hint="pass the name of a dataset in environment.kwargs instead of its data",
        field="body",
    )
