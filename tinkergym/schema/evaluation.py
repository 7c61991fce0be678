"""Episodes that the service plays for a client that does not have their environment."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tinkergym.schema.chat_templates import MOST_CHARACTERS, TemplateDay, TemplateVariables
from tinkergym.schema.decoding import CompletionSettings
from tinkergym.schema.events import ErrorView
from tinkergym.schema.jobs.parts import MOST_TEMPERATURE, EnvironmentRef, Limits, Reasoning
from tinkergym.schema.model import WireModel
from tinkergym.trajectory.trajectory import Trajectory

MOST_EPISODES = 10_000
"""The most episodes of one request."""


class EvaluationEpisode(WireModel):
    """One episode to play."""

    episode_id: str = Field(min_length=1, max_length=100)
    seed: int = Field(ge=0, lt=2**63)
    """The seed for `env.reset(seed=...)`."""
    sampling_seed: int = Field(ge=0, lt=2**63)
    task_index: int | None = Field(None, ge=0)


class EvaluationRequest(CompletionSettings):
    """Play episodes with a policy in an environment that is installed with the service."""

    environment: EnvironmentRef
    policy: str = Field(min_length=1, max_length=500)
    """A job's id or a model's name."""
    model: str = Field(min_length=1, max_length=500)
    """Whose renderer turns text into token ids."""
    chat_template: str = Field("", max_length=MOST_CHARACTERS)
    """Replaces the model's own chat template."""
    template_variables: TemplateVariables = {}
    template_date: TemplateDay = ""
    policy_version: int | None = Field(None, ge=0)
    temperature: float = Field(0.0, ge=0, le=MOST_TEMPERATURE)
    max_turn_tokens: int = Field(64, ge=1)
    limits: Limits = Limits()
    system_prompt: str | None = None
    reasoning: Reasoning = "keep"
    episodes: Annotated[list[EvaluationEpisode], Field(min_length=1, max_length=MOST_EPISODES)]


class EvaluationLine(WireModel):
    """One line of the response: a finished episode, or the reason why there are no more."""

    episode_id: str = ""
    trajectory: Trajectory | None = None
    is_game: bool = False
    """Whether the environment is a game against an opponent."""
    error: ErrorView | None = None
