"""Whether a submitted job may run: every check that needs no training, from the cheapest to the dearest.

Knows the order of the checks; each of them has its own module.
"""

from __future__ import annotations

from dataclasses import dataclass

from backend.admission import (
    datasets,
    engine_bounds,
    learner_bounds,
    origins,
    remote_environments,
    seat_tools,
    several_models,
)
from backend.admission.models import require_offered
from backend.admission.protocols import JobCheck, ModelCatalog
from backend.config import GatewayLimits, ServiceConfig
from backend.store.tenant import TenantStore
from tinkergym.errors import InvalidRequestError, PayloadTooLargeError
from tinkergym.schema.checks import with_group_rewards
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.jobs.dataset import DatasetSpec
from tinkergym.schema.jobs.distillation import DistillationSpec
from tinkergym.schema.jobs.own_loop import PolicySpec
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.spec import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Checks jobs of any tenant."""

    config: ServiceConfig
    catalog: ModelCatalog
    job_check: JobCheck

    def check(self, tenant: TenantStore, spec: JobSpec) -> tuple[JobSpec, dict[str, str]]:
        """Return the job as it will be stored, and the versions of its packs.

        Raises:
            TinkerGymError: The job is refused, with the reason.
        """
        config, catalog = self.config, self.catalog
        require_offered(config, tenant, spec.model)
        if isinstance(spec, DistillationSpec) and not PolicyRef.is_meant(spec.teacher):
            require_offered(config, tenant, spec.teacher, field="teacher")
        several_models.refuse_impossible(spec, config, tenant)
        seat_tools.refuse_foreign(spec)
        engine_bounds.refuse_impossible(spec, config, catalog)
        learner_bounds.refuse_impossible(spec, config, catalog)
        spec = origins.with_definite_origins(catalog, tenant, spec)
        if isinstance(spec, PolicySpec):
            return spec, {}
        if isinstance(spec, DatasetSpec):
            most_images = config.limits.prompt_images
            datasets.check(catalog, config.uploads, config.images, tenant, spec, most_images=most_images)
            remote_environments.check_evaluations(spec, config)
            if spec.played_by == "server":
                self.job_check.check_evaluations(spec, tenant.tenant_id)
            return spec, {}
        found = self.job_check.check(remote_environments.allowed(spec, config), tenant.tenant_id)
        if spec.rollout == "server":
            recorded = {"environment_prompt": found.environment_prompt, "environment_data": found.data}
            spec = spec.model_copy(update=recorded)
            spec = with_group_rewards(spec, pays_groups=found.group_rewards)
        if isinstance(spec, RLSpec):
            spec = _seated(spec, found.agents, found.offered)
        return spec, found.packs


def refuse_unplayed(spec: JobSpec, config: ServiceConfig) -> None:
    """Refuse jobs whose episodes the service would have to play, if it plays none."""
    if config.env_workers:
        return
    if spec.played_by != "server":
        return
    if spec.played:
        raise InvalidRequestError(
            "this service does not play episodes",
            hint="play them in your own process with rollout='client', or ask the operator to raise "
            "env_workers",
            field="rollout",
        )
    else:
        raise InvalidRequestError(
            "this service does not play episodes, so it cannot evaluate the job",
            hint="leave out evaluate, or ask the operator to raise env_workers",
            field="evaluate",
        )


def refuse_too_large(spec: JobSpec, limits: GatewayLimits) -> None:
    """Refuse jobs that would take memory or time from other tenants."""
    if len(spec.model_dump_json()) > limits.job_bytes:
        raise description_too_large(limits)
    played = spec.played
    if played is None:
        return
    episodes, most = played.groups.episodes, played.groups.most_episodes
    if most > limits.episodes_per_step:
        rounds = episodes <= limits.episodes_per_step
        field = played.groups.fields[1 if rounds else 0]
        raise InvalidRequestError(
            f"{most} episodes per step (in RL jobs group_size * groups_per_step, and as many for each of "
            f"dynamic_sampling_rounds) exceed the service's limit of {limits.episodes_per_step}",
            hint="use fewer, or ask the operator to raise limits.episodes_per_step",
            field=field,
        )
    if played.deterministic and played.rollout == "client" and episodes > limits.samples_in_flight:
        # In lockstep nothing is answered before all requests have arrived, so the last ones would be refused
        # forever.
        raise InvalidRequestError(
            f"the {episodes} episodes of a step of a deterministic job are sampled together, "
            f"but the service allows {limits.samples_in_flight} sampling requests of a tenant at a time",
            hint="use fewer episodes, let the service play them, or ask the operator to raise "
            "limits.samples_in_flight",
            field="deterministic",
        )


def description_too_large(limits: GatewayLimits) -> PayloadTooLargeError:
    """Return the error for a job whose description is too large."""
    return PayloadTooLargeError(
        f"the job's description is larger than {limits.job_bytes} bytes",
        hint="pass the name of a dataset in environment.kwargs instead of its data",
    )


def _seated(spec: RLSpec, agents: list[str], offered: list[str]) -> RLSpec:
    """Return a job with the seats of its game."""
    if spec.plays_game and spec.rollout == "server":
        return spec.seated(agents, offered)
    if spec.plays_game and not spec.agents:
        raise InvalidRequestError(
            "the service does not know the agents of a game that the client plays",
            hint="list them in agents: one with tg.Train, the others with tg.opponents.SharedWith",
            field="agents",
        )
    return spec
