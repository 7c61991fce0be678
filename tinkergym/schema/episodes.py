"""Episodes between the service and its rollout workers: requests, leases and results."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tinkergym.schema.events import JobState
from tinkergym.schema.fixed_players import External
from tinkergym.schema.jobs.parts import EnvironmentRef, ExecutorName, Limits, Reasoning, Sampling
from tinkergym.schema.model import MOST_EPISODES, MOST_RESULTS, WireModel
from tinkergym.schema.seat_tools import SeatTools
from tinkergym.trajectory.trajectory import MOST_TURNS, AgentId, Trajectory

MOST_SEATS = 64
"""The most seats of one episode."""


CURRENT = "current"
"""`SeatPlan.player` of the newest version of a policy in training, as an opponent that is not trained."""


class TablePlayer(WireModel):
    """A player run by the game itself. It answers with text; nothing of it is sampled or recorded."""

    kind: Literal["scripted", "replay", "external"] = "scripted"
    name: str = ""
    """The name in the game; for a record, the job; for an external model, the model."""
    actions: list[str] = Field([], max_length=MOST_TURNS)
    """Of a record, in order."""
    external: External | None = None
    """For an external model, how to call it; a service's boards have the key's name instead of it."""


class SeatPlan(WireModel):
    """Who plays one seat of an episode, and how."""

    policy: str
    """Policy id for `SampleRequest.policy`."""
    policy_version: int
    """The only version that may sample. With `max_staleness` above 0 the oldest one allowed; each completion
    is requested from the newest."""
    model: str
    """Whose renderer turns messages into token ids: a model's, or that of a job with its own chat
    template."""
    sampling_seed: int
    """The seat's turn k samples with seed `sampling_seed + k`."""
    sampling: Sampling
    temperature: float | None = Field(None, ge=0)
    """Replaces `sampling.temperature` for a seat that is not trained; 0 takes the likeliest token."""
    system_prompt: str | None = None
    tools: SeatTools | None = None
    """Tools that it may call before it moves."""
    reasoning: Reasoning = "keep"
    trained: bool = True
    """Whether the job trains on this seat."""
    player: str = ""
    """The kind of player, for separate results: `trained`, `current`, `past@20`, `random`, ..."""
    table: TablePlayer | None = None
    """If set, this plays the seat. The seat then has no policy and no trajectory."""

    @property
    def is_newest(self) -> bool:
        """Whether the newest version of a policy in training plays, even if the seat is not trained on."""
        return self.trained or self.player == CURRENT


class EpisodeRequest(WireModel):
    """One episode to play, leased to one worker."""

    job_id: str
    episode_id: str
    """`{job_id}:{step}:{index}`; the same for every re-issue, so a result counts once."""
    step: int
    index: int
    group: int
    environment: EnvironmentRef
    seed: int
    """The seed for `env.reset(seed=...)`; equal within a group."""
    task_index: int | None = None
    data_sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """The hash of the environment's tasks that the job recorded, if it did. A worker plays no others."""
    seats: dict[AgentId, SeatPlan] = Field(min_length=1, max_length=MOST_SEATS)
    """Seats by agent id. An environment with one agent has the seat `agent_0`."""
    max_staleness: int = Field(0, ge=0)
    """The job's executor."""
    limits: Limits
    """The limits of each seat."""
    executor: ExecutorName = "thread"
    retries: int = Field(0, ge=0)
    """How often the worker plays it again after a failure."""
    group_size: int = Field(0, ge=0)
    """How many episodes its group has, if the environment scores them together (`score_group`); these are
    leased, submitted and stored as a whole. 0 if each is scored separately."""
    lease_id: str
    lease_seconds: float

    @property
    def sampled_seats(self) -> list[str]:
        """The agents whose actions a policy samples; each has a trajectory."""
        return [agent for agent, seat in self.seats.items() if seat.table is None]


class LeaseRequest(WireModel):
    """A worker's request for episodes, which also renews its leases. It waits up to `wait_seconds`."""

    worker_id: str = Field(min_length=1, max_length=100)
    max_episodes: int = Field(ge=0, le=MOST_EPISODES)
    """The most episodes to lease; 0 only renews."""
    wait_seconds: float = Field(10.0, ge=0, le=60)
    renew: list[Annotated[str, Field(max_length=200)]] = Field([], max_length=MOST_EPISODES)
    """Lease ids of the episodes still being played."""
    leaving: bool = False
    """The worker is ending: leases not in `renew` go to other workers, and it gets no more episodes."""


class LeaseReply(WireModel):
    """Leased episodes, and whether more can come."""

    episodes: list[EpisodeRequest] = Field(max_length=MOST_EPISODES)
    lost: list[str] = Field([], max_length=MOST_EPISODES)
    """Lease ids from `renew` that are void: stop playing these."""
    job_state: JobState
    held_seconds: float = 0.0
    """If above 0, all open episodes are leased to workers that stopped responding, for at most this long."""
    waits_for: str = ""
    """If no worker runs the job at the moment, what it waits for in the queue."""


class EpisodeResult(WireModel):
    """The result of an episode: one trajectory per seat."""

    episode_id: str
    lease_id: str
    trajectories: list[Trajectory] = Field(min_length=1, max_length=MOST_SEATS)

    @model_validator(mode="after")
    def _no_agent_twice(self) -> Self:
        agent, times = Counter(one.agent for one in self.trajectories).most_common(1)[0]
        if times > 1:
            raise ValueError(f"agent {agent!r} has {times} trajectories; a seat has exactly one")
        return self

    @property
    def trajectory(self) -> Trajectory:
        """Return the trajectory of an episode with one seat.

        Raises:
            ValueError: There are several.
        """
        (only,) = self.trajectories
        return only


class SubmitRequest(WireModel):
    """Submitted results; the response is sent once they are durable."""

    worker_id: str = Field(min_length=1, max_length=100)
    results: list[EpisodeResult] = Field(max_length=MOST_RESULTS)


class SubmitReply(WireModel):
    """One verdict per result, in order: `accepted`, `duplicate` or `stale` (the lease was lost)."""

    verdicts: list[Literal["accepted", "duplicate", "stale"]] = Field(max_length=MOST_RESULTS)


class SessionView(WireModel):
    """A session of an agent program: one episode, which the program plays by its calls."""

    key: str
    """Authorizes the calls, and the reward; valid until the session ends."""
    urls: dict[AgentId, str] = Field(max_length=MOST_SEATS)
    """The base URL of the OpenAI API, by role."""
    reward_url: str
    """Where the reward is posted as JSON: a number, an object by role, or null to drop the episode."""
    seed: int
    """The same for sessions that are compared; it chooses the task, unless `task_index` does."""
    task_index: int | None = None
    is_evaluation: bool = False
    """Whether nothing of it is trained on."""
    timeout_seconds: float
    """How long it lasts at most."""
