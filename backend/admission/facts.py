"""What the checks of a job may ask: the service's settings and models, its tenant, and its environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from backend.catalog.adapter_files import SentAdapter, WrittenAdapter
from backend.catalog.models import ModelFacts
from backend.config import ServiceConfig
from backend.processes.machine_gpus import AskedGpus
from backend.processes.memory import machine_bytes
from backend.store.tenant import TenantStore
from tinkergym.schema.evaluate_every import EvaluatedTasks
from tinkergym.schema.events import ErrorView
from tinkergym.schema.jobs.evaluated_spec import EvaluatedSpec
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.schema.jobs.spec import JobSpec
from tinkergym.schema.refusals import Refusal
from tinkergym.schema.views import ModelView, RendererBundle

_machine_gpus = AskedGpus()


class ModelCatalog(Protocol):
    """The models that the service offers."""

    def listed(self) -> list[ModelView]:
        """Return the named models."""
        ...

    def known_as(self, model: str) -> str:
        """Return a model's canonical name, whose path may be written in many ways; unknown names stay."""
        ...

    def renderer(self, model: str, chat_template: str = "") -> RendererBundle:
        """Return what turns messages into the model's token ids.

        Raises:
            UnknownModelError: The service does not offer the model, or it cannot be read.
        """
        ...

    def adapter(self, model: str, sent: SentAdapter, out: Path) -> WrittenAdapter:
        """Check an adapter of a model, and write it as a checkpoint into an existing folder.

        Raises:
            UnknownModelError: The service does not offer the model, or it cannot be read.
            InvalidRequestError: The adapter cannot be trained on, or belongs to another model.
        """
        ...

    def facts(self, model: str) -> ModelFacts:
        """Return what the model's files describe.

        Raises:
            UnknownModelError: The service does not offer the model, or it cannot be read.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Facts from the check of a job's environment; empty if the service does not play it."""

    packs: dict[str, str] = field(default_factory=dict)
    """Versions of the packs that the job will use."""
    environment_prompt: str | None = None
    """The environment's own system prompt."""
    environment_variables: dict[str, Any] = field(default_factory=dict)
    """The template variables that its class sets."""
    data: dict[str, str] = field(default_factory=dict)
    """Hashes of the tasks of environments that draw from a dataset, by name; see `environment_data`."""
    tasks: int = 0
    """How many tasks an environment of an evaluation has; 0 if it has none."""
    trained_on: int | None = None
    """How many of them are also tasks of training."""
    tasks_sha256: str = ""
    """Their hash."""
    evaluated: dict[str, EvaluatedTasks] = field(default_factory=dict)
    """The tasks of the job's evaluations by name."""
    group_rewards: bool = False
    """Whether it scores the episodes of a group together."""
    agents: list[str] = field(default_factory=list)
    """All agents of a game."""
    offered: list[str] = field(default_factory=list)
    """Names of the players that a game offers."""


class JobCheck(Protocol):
    """Checks whether a job would fail, before it is created. Tenants share its processes fairly."""

    def check(self, spec: PlayedSpec, tenant_id: str) -> Checked:
        """Create and reset the job's environment, if the service plays it.

        Raises:
            InvalidRequestError: The job cannot run. The message says why and what to do.
        """
        ...

    def check_evaluations(self, spec: EvaluatedSpec, tenant_id: str) -> dict[str, EvaluatedTasks]:
        """Create and reset the environments in which the service will evaluate a job; return their tasks.

        Raises:
            InvalidRequestError: As `check`, with the field `evaluate`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What all checks of one job are given, gathered once."""

    config: ServiceConfig
    tenant: TenantStore
    catalog: ModelCatalog
    job_check: JobCheck
    memory: Callable[[], int] = machine_bytes
    """Returns this machine's memory in bytes."""
    gpus: Callable[[], Mapping[str, int]] = _machine_gpus
    """Returns this machine's GPUs and their memory; nvidia-smi is asked until it answers."""
    refusals: Callable[[], Mapping[str, ErrorView]] = dict
    """Returns why models cannot be started, as the scheduler found a moment ago."""
    packs: dict[str, str] = field(default_factory=dict)
    """Versions of the packs that the job will use; noted by the check that makes its environment."""


Check = Callable[[Any, Facts], "JobSpec | Refusal"]
"""Returns the job, perhaps with more of it filled in, or why it is refused.

May also raise a `TinkerGymError` of what it asked, such as that a policy does not exist.
"""
