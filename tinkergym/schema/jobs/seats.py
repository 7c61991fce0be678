"""Who plays a seat of a game."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from tinkergym.schema.algorithm_registry import Algorithm
from tinkergym.schema.chat_templates import TemplateVariables
from tinkergym.schema.fixed_players import Base, External, Frozen, League, Replay, Scripted
from tinkergym.schema.jobs.parts import Adapter, Sampling
from tinkergym.schema.model import Choice
from tinkergym.schema.seat_tools import SeatTools
from tinkergym.trajectory.trajectory import AgentId


class Train(Choice):
    """A seat of a game with its own policy, which the job trains."""

    kind: Literal["train"] = "train"
    adapter: Adapter | None = None
    """None uses the job's adapter."""
    system_prompt: str | None = None
    """None uses the job's system prompt."""
    tools: SeatTools | None = None
    """Tools that the policy may call before it moves: a list of names, or `SeatTools`. They are described
    after the game's own system prompt; `system_prompt` replaces both."""
    algorithm: Algorithm | None = None
    """Replaces the job's algorithm as a whole, its KL penalty and credit included, except `group_size` and
    `groups_per_step`. None uses the job's algorithm."""
    sampling: Sampling | None = None
    """None uses the job's sampling."""
    initial_policy: str | None = Field(None, max_length=4000)
    """As in a job: a reference, or the folder or hub id of a PEFT adapter. None uses the job's."""
    model: str | None = Field(None, max_length=500)
    """None means the job's. Another base model is loaded next to it while the job runs."""
    template_variables: TemplateVariables | None = None
    """Replace the job's as a whole, for the chat template of the seat's model. None uses the job's."""

    @field_validator("tools", mode="before")
    @classmethod
    def _a_list_names_the_tools(cls, given: object) -> object:
        return SeatTools.read(given)


class SharedWith(Choice):
    """A seat of a game that another seat's policy plays. The policy is trained on both seats."""

    kind: Literal["shared"] = "shared"
    agent: AgentId
    """A seat with `Train`."""

    def __init__(self, agent: str | None = None, /, **settings: Any) -> None:
        super().__init__(**({} if agent is None else {"agent": agent}), **settings)

    # As in `Choice`: nested settings are validated without this.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


SeatSettings = Annotated[
    Train | SharedWith | Frozen | Scripted | Base | External | League | Replay, Field(discriminator="kind")
]
"""Who plays a seat."""


AgentName = Annotated[AgentId, Field(pattern=r"^[^@/\s]+$")]
"""An agent id that is valid in a policy reference: `job-ID/AGENT@40`."""
