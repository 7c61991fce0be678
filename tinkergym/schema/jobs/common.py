"""The settings of every kind of job: the model, what is trained of it, for how long, and what is kept."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator

from tinkergym.schema.budget import Budget
from tinkergym.schema.chat_templates import MOST_CHARACTERS, template_text
from tinkergym.schema.model import Choice, UserSettings
from tinkergym.schema.optimizer import AdamW
from tinkergym.schema.policy_refs import POLICY_REF

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


class TrainingSpec(UserSettings):
    """Settings of every kind of job: which model is trained, for how long, and what is kept."""

    model: str = Field("nano", min_length=1, max_length=500)
    """A model name of the service, a model directory on its machine, or a Hugging Face hub id."""
    adapter: Adapter = LoRA()
    initial_policy: str = Field("", pattern=rf"^({POLICY_REF})?$", max_length=200)
    """`job-...@40`, `policy-...@40`, `job-...@step:40`: start from that version of a trained policy, with the
    same model and adapter. Without a version, from the newest checkpoint; the service records which that
    was."""
    chat_template: str = Field("", max_length=MOST_CHARACTERS)
    """Jinja text instead of the model's own template, or `plain` for base models, which have none. Empty uses
    the model's."""
    optimizer: AdamW = AdamW()
    """The optimizer."""
    sampling: Sampling = Sampling()
    steps: int = Field(ge=1, le=10**9)
    seed: int = Field(0, ge=0, lt=2**63)
    checkpoint_every: int = Field(10, ge=1)
    """Steps between checkpoints; the last step always writes one."""
    keep_checkpoints: int = Field(3, ge=1)
    budget: Budget | None = None
    """How much the job may use before it pauses; None means no limit."""
    name: str = Field("", max_length=200)
    """A label to find the job in lists."""

    @field_validator("chat_template")
    @classmethod
    def _a_template_may_be_named(cls, given: str) -> str:
        return template_text(given)

    def rendered_by(self, job_id: str) -> str:
        """Return whose renderer its episodes use: the model's, or the job's own."""
        return job_id if self.chat_template else self.model

    @property
    def trained_agents(self) -> tuple[str, ...]:
        """The agents with their own policy; the agent of a single policy is ""."""
        return ("",)

    def adapter_of(self, agent: str) -> Adapter:
        """Return the adapter of one of the `trained_agents`."""
        return self.for_agent(agent).adapter

    def for_agent(self, agent: str) -> Self:
        """Return the settings that apply to the policy of one of the `trained_agents`."""
        del agent
        return self

    @property
    def other_models(self) -> dict[str, str]:
        """The base models besides the job's own, each with the first agent whose policy uses it."""
        return {}

    def _refuse_endless_warmup(self, warmup_steps: int) -> None:
        if warmup_steps >= self.steps:
            self._refuse(
                f"warmup_steps must be below steps={self.steps}, or learning_rate is never reached; "
                "lower it, or train longer"
            )
