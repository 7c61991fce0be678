"""What admission needs of the service: its models, and a look at a job's environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from backend.catalog.models import ModelFacts
from tinkergym.schema.job_spec import EvaluatedSpec, PlayedSpec
from tinkergym.schema.views import ModelView, RendererBundle


class ModelCatalog(Protocol):
    """Which models the service offers."""

    def listed(self) -> list[ModelView]:
        """Return the models that are offered by name."""
        ...

    def known_as(self, model: str) -> str:
        """Return the one name of a model, whose path may be written in many ways; an unknown one stays."""
        ...

    def renderer(self, model: str, chat_template: str = "") -> RendererBundle:
        """Return what turns messages into the model's token ids.

        Raises:
            UnknownModelError: The service does not offer the model, or it cannot be read.
        """
        ...

    def facts(self, model: str) -> ModelFacts:
        """Return what the model's files say of it.

        Raises:
            UnknownModelError: The service does not offer the model, or it cannot be read.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What looking at a job's environment has shown; nothing where the service does not play it."""

    packs: dict[str, str] = field(default_factory=dict)
    """Versions of the packs that the job will use."""
    environment_prompt: str | None = None
    """The environment's own system prompt."""
    agents: list[str] = field(default_factory=list)
    """Of a game, all that it has."""
    offered: list[str] = field(default_factory=list)
    """Of a game, the players that it offers by name."""


class JobCheck(Protocol):
    """Looks for what would make a job fail, before it exists."""

    def check(self, spec: PlayedSpec) -> Checked:
        """Make and reset the job's environment, if the service plays it.

        Raises:
            InvalidRequestError: The job cannot run; says why and what to do.
        """
        ...

    def check_evaluations(self, spec: EvaluatedSpec) -> None:
        """Make and reset the environments that a job is to be evaluated in by the service.

        Raises:
            InvalidRequestError: As `check`, with the field `evaluate`.
        """
        ...
