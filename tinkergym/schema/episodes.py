"""Episodes between the service and its rollout workers: requests, leases and results."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tinkergym.schema.events import JobState
from tinkergym.schema.job_spec import EnvironmentRef, ExecutorName, Limits, Reasoning, Sampling
from tinkergym.schema.model import MOST_EPISODES, MOST_RESULTS, WireModel
from tinkergym.schema.opponents import External
from tinkergym.schema.seat_tools import SeatTools
from tinkergym.trajectory.trajectory import MOST_TURNS, AgentId, Trajectory

MOST_SEATS = 64
"""Of one episode."""


CURRENT = "current"
"""`SeatPlan.player` of the newest version of a policy in training, as an opponent that does not learn."""


class TablePlayer(WireModel):
    """A player at the game's own table: it answers with text, and nothing of it is sampled or recorded."""

    kind: Literal["scripted", "replay", "external"] = "scripted"
    name: str = ""
    """What the game calls it; of a record, the job; of a model behind a URL, the model."""
    actions: list[str] = Field([], max_length=MOST_TURNS)
    """Of a record, in order."""
    external: External | None = None
    """Of a model behind a URL, how to ask it; in the place of its key a service has the key's name."""


class SeatPlan(WireModel):
    """Who plays one seat of an episode, and how."""

    policy: str
    """Policy id, to be put into `SampleRequest.policy`."""
    policy_version: int
    """The only one that may answer; with `max_staleness` above 0 the oldest, and each answer is asked of the
    newest.
    """
    model: str
    """Whose renderer turns the messages into ids: a model's, or of a job with a chat template of its own."""
    sampling_seed: int
    """The seat's turn k samples with seed `sampling_seed + k`."""
    sampling: Sampling
    temperature: float | None = Field(None, ge=0)
    """Instead of `sampling.temperature`, where the seat is not learned from; 0 takes the likeliest token."""
    system_prompt: str | None = None
    tools: SeatTools | None = None
    """What it may call before it moves."""
    reasoning: Reasoning = "keep"
    trained: bool = True
    """Whether the job learns from this seat."""
    player: str = ""
    """Who plays it, as results are kept apart by: `trained`, `current`, `past@20`, `random`, ..."""
    table: TablePlayer | None = None
    """If set, this plays the seat: the seat has no policy, and its episode no trajectory of it."""

    @property
    def is_newest(self) -> bool:
        """Whether the newest version of a policy in training plays, also where it does not learn from it."""
        return self.trained or self.player == CURRENT


class EpisodeRequest(WireModel):
    """One episode to play, leased to one worker."""

    job_id: str
    episode_id: str
    """`{job_id}:{step}:{index}`; the same on every re-issue, so a result counts once."""
    step: int
    index: int
    group: int
    environment: EnvironmentRef
    seed: int
    """For `env.reset(seed=...)`; equal within a group."""
    task_index: int | None = None
    seats: dict[AgentId, SeatPlan] = Field(min_length=1, max_length=MOST_SEATS)
    """By agent id; an environment with one agent has the seat `agent_0`."""
    max_staleness: int = Field(0, ge=0)
    """Of the job."""
    limits: Limits
    """Of each seat."""
    executor: ExecutorName = "thread"
    retries: int = Field(0, ge=0)
    """How often the worker plays it again after a failure."""
    lease_id: str
    lease_seconds: float

    @property
    def sampled_seats(self) -> list[str]:
        """The agents whose actions a policy samples; each has a trajectory."""
        return [agent for agent, seat in self.seats.items() if seat.table is None]


class LeaseRequest(WireModel):
    """A worker asks for episodes and says that it lives; it waits up to `wait_seconds` for some."""

    worker_id: str = Field(min_length=1, max_length=100)
    max_episodes: int = Field(ge=0, le=MOST_EPISODES)
    """0 only renews."""
    wait_seconds: float = Field(10.0, ge=0, le=60)
    renew: list[Annotated[str, Field(max_length=200)]] = Field([], max_length=MOST_EPISODES)
    """Lease ids of the episodes still being played."""
    leaving: bool = False
    """The worker ends: its leases other than those in `renew` go to others, and it gets no more episodes."""


class LeaseReply(WireModel):
    """The episodes, and whether more can come."""

    episodes: list[EpisodeRequest] = Field(max_length=MOST_EPISODES)
    lost: list[str] = Field([], max_length=MOST_EPISODES)
    """Lease ids from `renew` that are void: stop playing these."""
    job_state: JobState
    held_seconds: float = 0.0
    """If above 0, all open episodes are leased to workers that fell silent, for at most so long."""
    waits_for: str = ""
    """If nobody runs the job at the moment, what it waits for in the queue."""


class EpisodeResult(WireModel):
    """What became of an episode: one trajectory per seat."""

    episode_id: str
    lease_id: str
    trajectories: list[Trajectory] = Field(min_length=1, max_length=MOST_SEATS)

    @model_validator(mode="after")
    def _no_agent_twice(self) -> Self:
        agent, times = Counter(one.agent for one in self.trajectories).most_common(1)[0]
        if times > 1:
            raise ValueError(f"agent {agent!r} has {times} trajectories; each seat has one")
        return self

    @property
    def trajectory(self) -> Trajectory:
        """The trajectory of an episode with one seat.

        Raises:
            ValueError: There are several.
        """
        (only,) = self.trajectories
        return only


class SubmitRequest(WireModel):
    """Results handed in; answered only when they are durable."""

    worker_id: str = Field(min_length=1, max_length=100)
    results: list[EpisodeResult] = Field(max_length=MOST_RESULTS)


class SubmitReply(WireModel):
    """One verdict per result, in order: `accepted`, `duplicate` or `stale` (the lease was lost)."""

    verdicts: list[Literal["accepted", "duplicate", "stale"]] = Field(max_length=MOST_RESULTS)
