"""Parts of a job's settings: adapters, sampling, limits, environments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from tinkergym.schema.model import Choice, WireModel
from tinkergym.schema.names import PROGRAM, is_remote
from tinkergym.schema.refusals import Refusal

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

    @property
    def is_program(self) -> bool:
        """Whether it is an agent program, whose roles are the seats."""
        return self.id.startswith(PROGRAM)

    def without_token(self) -> EnvironmentRef:
        """Return it without an environment server's token, for where it is shown or played by its client."""
        return EnvironmentRef(id=self.id, kwargs={k: v for k, v in self.kwargs.items() if k != "token"})


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


class CollapseGuard(Choice):
    """Three alarms. Each is a warning with the step and the last good version; the job continues.

    All figures are means over the last `window` steps. An alarm is raised once, and again only after its
    figure has recovered.
    """

    window: int = Field(10, ge=1, le=1000)
    """Number of steps over which figures are averaged."""
    anchor_drop: float = Field(0.15, gt=0)
    """`collapse_anchor_reward`: the mean return against a league's anchors is this far below its best, in
    units of return, while that of all other games is not."""
    least_entropy: float = Field(0.01, ge=0)
    """`collapse_entropy`: the entropy of sampled tokens is below this, in nats per token; 0 switches it
    off."""
    most_alike: float = Field(0.95, gt=0, le=1)
    """`collapse_draws` and `collapse_length`: a larger fraction of the games is drawn, or as long as
    `limits.max_turns` allows."""


_SECONDS_PER_HOUR = 3600.0


class Budget(Choice):
    """The most that a job may use. When a limit is reached, the job saves a checkpoint and pauses.

    Raise the budget and resume the job to continue. Hours count while the job has a place. Tokens are the
    sampled tokens, for training and evaluations, plus the trained tokens; a step that is repeated after a
    kill counts once.

    Example:
        >>> job = client.train("board/TicTacToeVs-v0", steps=500, budget=tg.Budget(hours=2))
        >>> job.update(budget=tg.Budget(hours=4))
        >>> job.resume()
    """

    hours: float | None = Field(None, gt=0, le=1e6)
    """Time with a place, including waiting for a client. Time in the queue or paused does not count."""
    tokens: int | None = Field(None, ge=1)
    """Sampled and trained tokens together. Checked after each step, so the last step may exceed it."""

    @model_validator(mode="after")
    def _it_bounds_something(self) -> Self:
        if self.hours is None and self.tokens is None:
            hint = "give hours, tokens or both; leave out budget for no limit"
            raise Refusal("", "bounds nothing", hint, "bounds_nothing").in_validator()
        return self

    def used_up(self, seconds: float, tokens: int) -> str:
        """Say which limit has been reached; empty if none."""
        if self.hours is not None and seconds >= self.hours * _SECONDS_PER_HOUR:
            return f"{seconds / _SECONDS_PER_HOUR:.3g} of {self.hours:g} hours are used"
        if self.tokens is not None and tokens >= self.tokens:
            return f"{tokens:,} of {self.tokens:,} tokens are used"
        return ""
