"""What a scripted service offers: two models of bytes, any model folder, and environments by their ids."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from backend.admission.facts import Checked
from backend.catalog.adapter_files import SentAdapter, WrittenAdapter
from backend.catalog.models import ModelFacts
from tinkergym.agent.templates import ChatTemplate
from tinkergym.errors import UnknownEnvironmentError, UnknownModelError
from tinkergym.schema.evaluate_every import EvaluatedTasks
from tinkergym.schema.jobs.evaluated_spec import EvaluatedSpec
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.schema.views import ModelView, RendererBundle

MODELS = ("nano", "nano-instruct")
VOCABULARY = 258
"""Token ids of `byte_bundle`."""


class ScriptedCatalog:
    """Implements `ModelCatalog`; every model renders alike."""

    def __init__(self, bundle: Callable[[], RendererBundle], found: Callable[[str], object]) -> None:
        """Offer models with this renderer; `found` hears of each that is asked for."""
        self._bundle, self._found = bundle, found

    def listed(self) -> list[ModelView]:
        """Return the named models."""
        return [ModelView(name=name, context_length=self._bundle().context_length) for name in MODELS]

    def known_as(self, model: str) -> str:
        """Return the name unchanged."""
        return model

    def renderer(self, model: str, chat_template: str = "") -> RendererBundle:
        """Return the renderer under the model's name."""
        if model not in MODELS and not Path(model).is_absolute():
            hint = f"available: {', '.join(MODELS)}"
            raise UnknownModelError(f"unknown model {model!r}", hint=hint, field="model")
        self._found(model)
        own: dict[str, Any] = {}
        if chat_template:
            own = {
                "chat_template": chat_template,
                "template_names": sorted(ChatTemplate(chat_template, {}).names),
            }
        return self._bundle().model_copy(update={"model": model, **own})

    def adapter(self, model: str, sent: SentAdapter, out: Path) -> WrittenAdapter:
        """Refuse all: no model here has weights."""
        raise UnknownModelError(f"the model {model!r} has no weights", field="model")

    def facts(self, model: str) -> ModelFacts:
        """Return facts of a tiny text model."""
        return ModelFacts(
            directory=Path(),
            architecture="NanoForCausalLM",
            context_length=self.renderer(model).context_length,
            vocabulary_size=VOCABULARY,
            parameters=1000,
            has_experts=False,
        )


class ScriptedCheck:
    """Implements `JobCheck`: the service plays these environments, and their insides are not checked."""

    def __init__(self, environments: Collection[str]) -> None:
        self._environments = environments

    def check(self, spec: PlayedSpec, tenant_id: str) -> Checked:
        """Refuse environments that the service does not have."""
        if spec.rollout == "server":
            for environment in spec.own_environments.values():
                self._require(environment.id)
        return Checked()

    def check_evaluations(self, spec: EvaluatedSpec, tenant_id: str) -> dict[str, EvaluatedTasks]:
        """Refuse nothing, and find no tasks."""
        return {}

    def _require(self, environment_id: str) -> None:
        if environment_id not in self._environments:
            raise UnknownEnvironmentError(
                f"there is no environment {environment_id!r}",
                hint=f"there are: {', '.join(self._environments)}",
                field="environment.id",
            )
