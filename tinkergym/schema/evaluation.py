"""Episodes that the service plays for a client that does not have their environment."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, JsonValue, model_validator

from tinkergym.schema.chat_templates import MOST_CHARACTERS, TemplateDay, TemplateVariables
from tinkergym.schema.decoding import CompletionSettings
from tinkergym.schema.episodes import MOST_SEATS
from tinkergym.schema.events import ErrorView
from tinkergym.schema.jobs.parts import MOST_TEMPERATURE, EnvironmentRef, Limits, Reasoning
from tinkergym.schema.model import UserSettings, WireModel
from tinkergym.schema.refusals import Refusal
from tinkergym.trajectory.trajectory import MOST_TURNS, Trajectory

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


MOST_BRANCHES = 64
"""The most continuations of one request."""


class BranchRequest(UserSettings):
    """Continue a stored episode differently from one of its turns; see `Job.branch`."""

    turn: int = Field(ge=1, le=MOST_TURNS)
    """The first turn that is played anew, counted from 1. Those before it are repeated."""
    agent: str = Field("", max_length=100)
    """Whose turn; empty in an episode with one seat."""
    policy: str = Field("", max_length=500)
    """Who answers: `job-ID@40` or a model's name. Empty means the newest version of the seat's policy."""
    actions: list[Annotated[str, Field(max_length=100_000)]] = Field([], max_length=1000)
    """Answers written by hand, for the first turns that are played anew. The policy answers after them."""
    n: int = Field(1, ge=0, le=MOST_BRANCHES)
    """How many continuations, with different sampling seeds. With 0 the episode is only played until the
    observation after the last of `actions`."""
    temperature: float | None = Field(None, ge=0, le=MOST_TEMPERATURE)
    """Of the seat. None is as in training."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Other sampling seeds with each."""

    @model_validator(mode="after")
    def _something_is_played(self) -> Self:
        if not self.n and not self.actions:
            raise Refusal("n", "is 0, and there are no actions", "give at least one").in_validator()
        return self


class CrossPlayRequest(UserSettings):
    """Let versions of a job's policies play each other; see `Job.crossplay`."""

    versions: list[Annotated[int, Field(ge=0)]] = Field([], max_length=12)
    """Empty means the first, the newest, and up to three with a checkpoint."""
    against: list[Annotated[str, Field(min_length=1, max_length=500)]] = Field(["random"], max_length=8)
    """Further players: players of the game, `job-ID@40`, models."""
    pairs: int = Field(20, ge=1, le=200)
    """Seeds per matchup, each played once per assignment of seats."""


class CrossPlayLine(WireModel):
    """The games of a cross-play, in figures."""

    crossplay: dict[str, JsonValue]
    """As `CrossPlay.to_json`."""
    ratings: dict[str, JsonValue]
    """As `Ratings.to_json`."""


class EvaluationLine(WireModel):
    """One line of the response: a finished episode, or the reason why there are no more."""

    episode_id: str = ""
    trajectory: Trajectory | None = None
    others: list[Trajectory] = Field([], max_length=MOST_SEATS)
    """Of the other seats, in a branch of a game."""
    is_game: bool = False
    """Whether the environment is a game against an opponent."""
    error: ErrorView | None = None
