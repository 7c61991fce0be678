"""What the service shows of its models, environments and health."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from tinkergym.schema.chat_templates import MOST_CHARACTERS
from tinkergym.schema.job_spec import Reasoning
from tinkergym.schema.model import WireModel

ProcessorFile = Literal["processor_config.json", "preprocessor_config.json"]
"""In the folder of a model that takes images, says what its processor makes of them."""

EXPORT_FILE = "tinkergym.json"
"""In the folder of an export, says where the policy comes from, and what `TrainedWith` has."""


class TrainedWith(WireModel):
    """How training asked the policy that an export holds; what is asked otherwise answers otherwise."""

    system_prompt: str | None = None
    """The job's own, or the environment's."""
    reasoning: Reasoning = "keep"


class ImageSizing(WireModel):
    """How many tokens an image takes by its size: it is resized to whole squares, of which each is one token.

    Height and width are rounded to multiples of `factor`, and then made smaller or larger until their product
    lies within the bounds.
    """

    factor: int = Field(ge=1, le=4096)
    """Pixels on the side of a square."""
    least_pixels: int = Field(ge=1)
    most_pixels: int = Field(ge=1)


class ImageRules(WireModel):
    """How a model's processor writes an image into a prompt."""

    placeholder: int = Field(ge=0)
    """The token id that the chat template writes once per image, and that stands for all of its tokens."""
    tokens: int = Field(ge=0, le=100_000)
    """How many of them an image takes; 0 if that depends on its size."""
    by_size: ImageSizing | None = None
    """How it depends."""
    before: list[int] = Field([], max_length=16)
    """Token ids in front of them."""
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
    """bos_token, eos_token, ... as the chat template names them."""
    stop_ids: list[int] = Field(max_length=1024)
    """Token ids that end an answer."""
    context_length: int
    images: ImageRules | None = None
    """None for a model that takes text only."""
    sha256: str
    processor_files: dict[ProcessorFile, str] = {}
    """Of a model that takes images, for exports; no part of the hash."""
    trained_with: TrainedWith | None = None
    """Of the folder of an export; no part of the hash, which is of what makes tokens."""


class WantedRenderer(WireModel):
    """A model's renderer with a chat template of the caller's; the body of `POST /v1/renderer`."""

    model: str = Field(min_length=1, max_length=500)
    chat_template: str = Field(max_length=MOST_CHARACTERS)


class PolicyView(WireModel):
    """The policy that a reference names, see `GET /v1/policies`."""

    policy_id: str
    job_id: str
    """The job that trains it, or did."""
    agent: str
    """Which of the job's policies it is; empty where the job trains one."""
    model: str
    version: int | None
    """The one that the reference names; None is the newest, whichever that is."""
    kept: list[int] = Field(max_length=100_000)
    """Versions with a checkpoint, oldest first."""


class EnvironmentView(WireModel):
    """An environment that the service can play itself, for `train` and evaluations that it plays."""

    id: str
    distribution: str
    """The pack's, as pip calls it."""
    version: str
    """Of the pack."""


class ModelView(WireModel):
    """A model that the service offers."""

    name: str
    parameters: int | None = None
    context_length: int
    description: str = ""


class HealthView(WireModel):
    """Whether the service answers, and what it still waits for."""

    status: Literal["ok", "degraded"]
    version: str
    waiting_for: list[str] = Field([], max_length=1000)
    """Parts that are not there at the moment: `scheduler`, `pool:nano`, ..."""
    missing_since: dict[str, float] = {}
    """For each of them the Unix time, in seconds, since when."""
    memory: dict[str, int] = {}
    """Bytes that each loaded model takes with its environment workers; only the local owner is told."""
