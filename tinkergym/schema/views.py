"""The service's models, environments and health, as clients see them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from tinkergym.schema.chat_templates import MOST_CHARACTERS, TemplateDay, TemplateVariables, template_sha256
from tinkergym.schema.jobs.parts import Adapter, Reasoning
from tinkergym.schema.model import WireModel
from tinkergym.schema.seat_tools import SeatTools

ProcessorFile = Literal["processor_config.json", "preprocessor_config.json"]
"""In the folder of a model with image support: how its processor represents them."""

EXPORT_FILE = "tinkergym.json"
"""The file in an export that says where the policy comes from and how it was trained (`TrainedWith`)."""


class TrainedWith(WireModel):
    """How training prompted the exported policy. With other settings it may behave differently."""

    system_prompt: str | None = None
    """The job's system prompt, or the environment's."""
    reasoning: Reasoning = "keep"
    tools: SeatTools | None = None
    """Tools of the policy's seat; the system prompt describes them."""
    template_variables: TemplateVariables = {}
    template_date: TemplateDay = ""


class ImageSizing(WireModel):
    """The number of an image's tokens by its size: it is resized to a grid of squares, each one token.

    Height and width are rounded to multiples of `factor`, and then made smaller or larger until their product
    lies within the bounds.
    """

    factor: int = Field(ge=1, le=4096)
    """Side of a square in pixels."""
    least_pixels: int = Field(ge=1)
    most_pixels: int = Field(ge=1)


class ImageRules(WireModel):
    """How a model's processor writes an image into a prompt."""

    placeholder: int = Field(ge=0)
    """The token id that the chat template writes once per image, and that represents each of its tokens."""
    tokens: int = Field(ge=0, le=100_000)
    """The number of placeholders per image; 0 if it depends on the size."""
    by_size: ImageSizing | None = None
    """How it depends on the size."""
    before: list[int] = Field([], max_length=16)
    """Token ids before them."""
    after: list[int] = Field([], max_length=16)

    @model_validator(mode="after")
    def _says_how_many(self) -> Self:
        if (self.tokens == 0) is (self.by_size is None):
            raise ValueError("an image takes either so many tokens, or as many as its size says")
        return self


class RendererBundle(WireModel):
    """What a client needs to turn messages into a model's token ids, and back."""

    model: str
    tokenizer_json: str
    chat_template: str
    special_tokens: dict[str, str] = {}
    """bos_token, eos_token, ... as the chat template uses them."""
    add_bos_token: bool | None = None
    """Whether documents begin with the `bos_token`; None leaves it to the tokenizer's post-processor."""
    template_names: list[str] = Field([], max_length=10_000)
    """The names that `template_variables` may have: those that the template reads."""
    template_variables: TemplateVariables = {}
    template_date: TemplateDay = ""
    """The date that the chat template writes; empty where that is the day of the renderer's start."""
    stop_ids: list[int] = Field(max_length=1024)
    """Token ids that end a completion."""
    context_length: int
    images: ImageRules | None = None
    """None for a text-only model."""
    sha256: str
    base_sha256: str = ""
    """Identifies the model's weights, for exports; not part of the hash. Empty where there are none."""
    processor_files: dict[ProcessorFile, str] = {}
    """For a model with image support; used by exports and not part of the hash."""
    trained_with: TrainedWith | None = None
    """Set for an exported folder. Not part of the hash, which covers only what determines tokens."""

    def with_settings(self, variables: Mapping[str, Any], day: str) -> Self:
        """Return the renderer with values for the template's variables, and with its date."""
        if not variables and not day:
            return self
        made_of = json.dumps([self.sha256, dict(variables), day], sort_keys=True)
        changes = {"template_variables": dict(variables), "template_date": day}
        return self.model_copy(update={**changes, "sha256": hashlib.sha256(made_of.encode()).hexdigest()})

    @property
    def template_sha256(self) -> str:
        """The hash of the chat template with its variables and its date, which certificates name."""
        return template_sha256(self.chat_template, self.template_variables, self.template_date)


class WantedRenderer(WireModel):
    """A model's renderer with the caller's chat template; the body of `POST /v1/renderer`."""

    model: str = Field(min_length=1, max_length=500)
    chat_template: str = Field(max_length=MOST_CHARACTERS)


class PolicyView(WireModel):
    """The policy that a reference names, see `GET /v1/policies`."""

    policy_id: str
    job_id: str
    """The job that trains or trained it."""
    agent: str
    """The agent whose policy it is; empty if the job trains one."""
    model: str
    adapter: Adapter
    """Which parameters were trained."""
    version: int | None
    """The version in the reference; None is the newest."""
    kept: list[int] = Field(max_length=100_000)
    """Versions with a checkpoint, oldest first."""


class EnvironmentView(WireModel):
    """An environment that the service can play, for `train` and evaluations."""

    id: str
    distribution: str
    """The pack's distribution name, as in pip."""
    version: str
    """Version of the pack."""


class ModelView(WireModel):
    """A model that the service offers."""

    name: str
    parameters: int | None = None
    context_length: int
    description: str = ""


class EngineHostView(WireModel):
    """One more engine of a loaded model, in a process of its own."""

    engine_id: str
    model: str
    node: str
    """The address of its machine; empty on a service's only one."""
    memory_bytes: int
    """0 while unknown."""
    silent_seconds: float
    """Since its last heartbeat."""


class HealthView(WireModel):
    """Whether the service responds, and what it is waiting for."""

    status: Literal["ok", "degraded"]
    version: str
    waiting_for: list[str] = Field([], max_length=1000)
    """Unavailable parts: `scheduler`, `pool:nano`, ... A pool is missing while it should be loaded from the
    start, and from its end until another is ready or no job needs it; `engines:nano` while an engine host of
    it does not come up; `nodes` while no node can be used, or none has what a waiting model needs. Only the
    local owner sees the names of models that the service does not list; for others these are `pool` and
    `engines`."""
    missing_since: dict[str, float] = {}
    """For each of them, since when, in Unix seconds."""
    resting: list[str] = Field([], max_length=1000)
    """Loaded models whose engines sleep, at rest or while a job learns: their workers answer, but no token
    was sampled, which would wake them. The names of models that the service does not list are shown to the
    local owner only."""
    memory: dict[str, int] = {}
    """Bytes used by each loaded model with its environment workers and engine hosts; shown to the local owner
    only."""
    engine_hosts: list[EngineHostView] = Field([], max_length=10_000)
    """Further engines of loaded models; shown to the local owner only."""
    operator_key: str = ""
    """The Ed25519 public key, in hexadecimal digits, that signs certificates."""
