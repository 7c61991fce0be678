"""Parts of a job's settings: adapters, sampling, limits, environments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, JsonValue, field_validator

from tinkergym.schema.model import Choice, WireModel
from tinkergym.schema.names import is_remote

LEAST_TEMPERATURE = 1e-3
"""Logits divided by much less become infinite, as if the policy had diverged."""


MOST_TEMPERATURE = 10


LONGEST_SECONDS = 1e9
"""Thirty years. Clocks and threads cannot wait for much longer."""


class LoRA(Choice):
    """Train low-rank adapters for the linear layers of the decoder (arXiv:2106.09685)."""

    kind: Literal["lora"] = "lora"
    rank: int = Field(8, ge=1, le=512)
    """Rank of the two factors of each adapted layer."""
    alpha: float = Field(16.0, gt=0, le=1e6)
    """The adapter's output is scaled by `alpha / rank`."""
    rslora: bool = False
    """Scale by `alpha / sqrt(rank)` instead (rank-stabilized LoRA, arXiv:2312.03732)."""
    target_modules: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = Field((), max_length=64)
    """Which layers to adapt: names (`q_proj`) or paths (`layers.0.*`), `*` for anything. Each must match a
    layer; empty adapts all."""

    @field_validator("target_modules", mode="before")
    @classmethod
    def _one_pattern_is_a_list_of_one(cls, given: object) -> object:
        return (given,) if isinstance(given, str) else given

    vision: bool = False
    """Also adapt the vision tower and its connector. Refused for text-only models."""


class FullParameters(Choice):
    """Train every parameter of the model."""

    kind: Literal["full"] = "full"


Adapter = Annotated[LoRA | FullParameters, Field(discriminator="kind")]


class Sampling(Choice):
    """How completions are sampled during training."""

    temperature: float = Field(1.0, ge=LEAST_TEMPERATURE, le=MOST_TEMPERATURE)
    """Logits are divided by it, in the engine and in the learner."""
    max_turn_tokens: int = Field(64, ge=1)
    """Most sampled tokens per completion."""


class Limits(Choice):
    """Limits at which an episode is cut off."""

    max_turns: int = Field(64, ge=1)
    """Completions per episode; in a game, of each seat."""
    max_episode_tokens: int | None = Field(None, ge=1)
    """Sampled tokens of all turns together; None means that only the context limits them."""
    max_context_tokens: int | None = Field(None, ge=1)
    """Tokens of a prompt and its completion together. None uses the model's context, which is never
    exceeded."""
    step_timeout_seconds: float = Field(60.0, gt=0, le=LONGEST_SECONDS)
    """Time limit for one `reset` or `step` of the environment."""
    episode_timeout_seconds: float = Field(3600.0, gt=0, le=LONGEST_SECONDS)
    """Time limit for a whole episode, from when a worker starts to play it."""


Reasoning = Literal["keep", "drop"]
"""Whether later turns see the `<think>...</think>` of earlier completions."""


ExecutorName = Literal["thread", "process"]
"""Where environments run: each in a thread of the worker, or in its own process."""


class EnvironmentRef(WireModel):
    """An environment, by its registered id; never code or data."""

    id: str = Field(min_length=1, max_length=200)
    kwargs: dict[str, JsonValue] = {}

    @property
    def is_remote(self) -> bool:
        """Whether it runs in an environment server."""
        return is_remote(self.id)


class WeightedEnvironment(EnvironmentRef):
    """One of a job's several environments."""

    weight: float = Field(gt=0, le=1e6)
    """Its share of the groups is this, divided by the sum of all weights."""

    @property
    def ref(self) -> EnvironmentRef:
        """The environment without its weight."""
        return EnvironmentRef(id=self.id, kwargs=self.kwargs)


@dataclass(frozen=True, slots=True)
class Groups:
    """The episodes of a train step, in groups that play the same task."""

    count: int
    """Groups per step."""
    size: int = 1
    """Episodes per group."""
    rounds: int = 0
    """How often a step may replace groups by new ones."""
    fields: tuple[str, str] = ("algorithm.groups_per_step", "algorithm.dynamic_sampling_rounds")
    """The settings of `count` and `rounds`."""

    @property
    def episodes(self) -> int:
        """How many episodes one train step asks for."""
        return self.count * self.size

    @property
    def most_episodes(self) -> int:
        """The most episodes of one train step, if each round replaces every group."""
        return self.episodes * (1 + self.rounds)
