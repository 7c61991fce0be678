"""Opponents: fixed players for seats that are not trained, and leagues that draw from them.

Settings only. The service draws who plays each episode from the job's seed.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from tinkergym.errors import InvalidRequestError
from tinkergym.network.model_urls import check_key, check_url, origin_of
from tinkergym.schema.ids import POLICY_REF
from tinkergym.schema.model import Choice, WireModel
from tinkergym.schema.refusals import Refusal, no_effect
from tinkergym.trajectory.trajectory import AgentId

MOST_ANCHORS = 32
MOST_SNAPSHOTS = 100


class _Named(Choice):
    """A choice whose first setting can be passed by position."""

    first_setting: ClassVar[str]

    def __init__(self, first: Any = None, /, **settings: Any) -> None:
        super().__init__(**({} if first is None else {self.first_setting: first}), **settings)

    # As in `Choice`: nested settings are validated without this.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


class PlayedAs(WireModel):
    """How a policy was trained, and so how it is played."""

    rendered_by: str
    """Whose renderer: the model's, or that of a job with its own chat template."""
    temperature: float
    max_turn_tokens: int
    system_prompt: str | None
    """None is the game's own."""
    reasoning: Literal["keep", "drop"]


class Frozen(_Named):
    """One version of a policy that an earlier job trained.

    It plays as it was trained: with its own sampling, system prompt and chat template.

    Example:
        >>> tg.opponents.Frozen("job-...@40")
    """

    first_setting: ClassVar[str] = "policy"
    kind: Literal["frozen"] = "frozen"
    policy: str = Field(pattern=rf"^{POLICY_REF}$", max_length=200)
    """`job-...@40`, `job-.../black@best`, ...: a policy on the same base model. Without a version,
    the newest one; the job then records which that was.
    """
    played_as: PlayedAs | None = None
    """Set by the service when it accepts a job."""

    @property
    def label(self) -> str:
        """The name under which results against it are recorded."""
        return self.policy


class Scripted(_Named):
    """A scripted player that the game offers by name, such as `random` or `heuristic`."""

    first_setting: ClassVar[str] = "name"
    kind: Literal["scripted"] = "scripted"
    name: str = Field(min_length=1, max_length=100)

    @property
    def label(self) -> str:
        """The name under which results against it are recorded."""
        return self.name


class Base(Choice):
    """The base model, untrained."""

    kind: Literal["base"] = "base"

    @property
    def label(self) -> str:
        """The name under which results against it are recorded."""
        return "base"


class External(Choice):
    """An external model behind an OpenAI-style URL, called for each of its moves.

    The service only calls URLs on its operator's list `opponent_urls`; a client calls any. If the model does
    not answer in time, or its answer is empty, the game ends for all seats with `opponent_failed` and is not
    trained on.

    Example:
        >>> tg.opponents.External(url="https://models.example/v1", model="small", api_key=key)
    """

    kind: Literal["external"] = "external"
    url: str = Field(max_length=2000)
    """The API's base; `/chat/completions` is added."""
    model: str = Field(min_length=1, max_length=200)
    """The model's name there."""
    api_key: str = Field("", max_length=2000, repr=False)
    """Stored separately from the job and never shown. If a client plays, leave it out and set
    `TINKERGYM_OPPONENT_KEY` in that process."""
    system_prompt: str | None = None
    """None means the job's, else the game's own."""
    temperature: float = Field(1.0, ge=0, le=2)
    max_tokens: int = Field(256, ge=1)
    """Of one answer."""
    timeout_seconds: float = Field(30.0, gt=0, le=600)
    """Time limit for one answer, all attempts together."""

    @property
    def label(self) -> str:
        """The name under which results against it are recorded."""
        return f"external:{self.model}"

    @field_validator("url")
    @classmethod
    def _it_is_an_address(cls, url: str) -> str:
        try:
            check_url(url)
            origin_of(url)
        except InvalidRequestError as error:
            raise Refusal("", error.message, error.hint, "unusable").in_validator() from None
        return url

    @field_validator("api_key")
    @classmethod
    def _a_header_can_carry_it(cls, api_key: str) -> str:
        try:
            check_key(api_key)
        except InvalidRequestError as error:
            raise Refusal("", error.message, error.hint, "unusable").in_validator() from None
        return api_key


class Replay(_Named):
    """Repeat what another job's policy did at this seat, action by action, so that only one thing changes.

    It must be your job, with the same game, seed, groups and agents, and at least as many steps.
    """

    first_setting: ClassVar[str] = "job"
    kind: Literal["replay"] = "replay"
    job: str = Field(pattern=r"^job-[^@/\s]+$", max_length=200)

    @property
    def label(self) -> str:
        """The name under which results against it are recorded."""
        return "replay"


FixedPlayer = Annotated[Frozen | Scripted | Base | External, Field(discriminator="kind")]
"""A player that is the same in every episode."""


class League(Choice):
    """Opponents drawn for each group of episodes: anchors, past versions, and the current one.

    Pure self-play is known to collapse: both sides settle on habits that fail against other opponents.
    Anchors never change, so playing some of the games against them prevents this.

    Source:
        Fictitious self-play, and its prioritized form (AlphaStar, doi:10.1038/s41586-019-1724-z).
    """

    kind: Literal["league"] = "league"
    anchors: list[FixedPlayer] | None = Field(None, max_length=MOST_ANCHORS)
    """Fixed players. None uses the game's random player, or the base model if it has none."""
    anchor_share: float = Field(0.2, ge=0, le=1)
    """Fraction of the groups that play against anchors; in every step as close as whole groups allow."""
    current_share: float = Field(0.5, ge=0, le=1)
    """Fraction of the groups that play against the newest version. In self-play, all seats learn in these
    groups. The other groups play against past versions."""
    past: Literal["uniform", "prioritized"] = "uniform"
    """How a past version is drawn: all equally likely, or more often those that are rarely beaten."""
    snapshot_every: int = Field(10, ge=1)
    """Train steps between snapshots, the versions kept as opponents. The first is version 0."""
    most_snapshots: int = Field(20, ge=1, le=MOST_SNAPSHOTS)
    """How many snapshots are kept: the first and the newest."""
    of: AgentId | None = None
    """The agent whose policy's current and past versions play. None is the first seat with `Train`; in
    self-play, each seat plays versions of its own policy."""

    @property
    def past_share(self) -> float:
        """Fraction of the groups that play against past versions."""
        return max(0.0, 1.0 - self.anchor_share - self.current_share)

    @property
    def has_past(self) -> bool:
        """Whether past versions play at all."""
        return self.past_share > 1e-9

    @model_validator(mode="after")
    def _its_shares_add_up(self) -> Self:
        if self.anchor_share + self.current_share > 1 + 1e-9:
            reason = "and current_share must add up to at most 1"
            raise Refusal("anchor_share", reason, code="shares").in_validator()
        if self.anchors == [] and self.anchor_share:
            hint = "set it to 0, or leave anchors out for the game's own"
            raise Refusal("anchor_share", "needs anchors", hint, "no_anchors").in_validator()
        if self.anchors and not self.anchor_share:
            raise no_effect("anchors", "anchor_share above 0").in_validator()
        for name in ("past", "snapshot_every", "most_snapshots"):
            self._refuse_idle(name, not self.has_past, "shares that leave groups for past versions")
        return self
