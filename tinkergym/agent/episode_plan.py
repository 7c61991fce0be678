"""What an episode will be: everything that is decided before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

from tinkergym.schema.decoding import AS_THE_MODEL, Decoding
from tinkergym.schema.episodes import EpisodeRequest, TablePlayer
from tinkergym.schema.ids import SeatRef
from tinkergym.schema.jobs.parts import EnvironmentRef, ExecutorName, Limits, Reasoning
from tinkergym.schema.sampling import SampleRequest
from tinkergym.schema.seat_tools import SeatTools
from tinkergym.trajectory.trajectory import ONLY_AGENT


class PlayedPolicy(Protocol):
    """A policy, as the plan of its episodes needs it."""

    name: str
    model: str
    version: int | None
    limits: Limits
    system_prompt: str | None
    reasoning: Reasoning
    decoding: Decoding


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodePlan:
    """One episode: the environment, the seeds, the policy, and its limits."""

    episode_id: str
    """Unique among the episodes that one sampler sees."""
    seed: int
    """For `env.reset(seed=...)`."""
    policy: str
    """A job id or a model's name; see `SampleRequest.policy`."""
    model: str = ""
    """Whose renderer turns messages into ids; empty where only one is in play."""
    environment: EnvironmentRef | None = None
    """None where the caller holds the environment itself."""
    task_index: int | None = None
    data_sha256: str = ""
    """The hash that the environment's tasks must have; empty for any."""
    policy_version: int | None = None
    """None takes the newest."""
    decoding: Decoding = AS_THE_MODEL
    """How its completions are sampled; in training from the whole distribution."""
    limits: Limits = field(default_factory=Limits)
    system_prompt: str | None = None
    """None leaves it to the environment's own."""
    tools: SeatTools | None = None
    """Tools that a seat of a game may call before it moves."""
    reasoning: Reasoning = "keep"
    """Whether later turns see the reasoning of earlier answers."""
    executor: ExecutorName = "thread"
    """Where the environment runs, unless the player has its own executor."""
    retries: int = 0
    """How often the episode is played again if it fails, with the same seeds, so that the result is as
    without the failure."""
    attempt: int = 0
    """How often it has failed already."""
    lease_id: str = ""
    agent: str = ONLY_AGENT
    """The seat's agent."""
    seat: int = 0
    """The seat's index in the episode."""
    trained: bool = True
    """Whether the job trains on the seat."""
    group: int = 0
    """The index of its group in the step."""
    group_size: int = 0
    """The number of episodes scored together, once all have ended; 0 scores each separately."""
    is_game: bool = False
    """Whether this is a seat of a game, even if scripts play all other seats."""
    others: tuple[Self, ...] = ()
    """The plans of the other seats, held by the first seat's plan. Settings shared by all seats, such as the
    environment, are those of the first."""

    table: Mapping[str, tuple[TablePlayer, int]] = field(default_factory=dict)
    """The agents played by the game itself, with their player and seed."""

    session_id: str = field(init=False, compare=False)
    """The session of the seat's sampling requests: its lease, so that two attempts never mix."""

    def __post_init__(self) -> None:
        # Written once: each turn asks for it three times.
        object.__setattr__(self, "session_id", str(SeatRef(self.lease_id or self.episode_id, self.seat)))

    @property
    def seats(self) -> tuple[Self, ...]:
        """The plans of all seats."""
        return (self, *self.others)

    def request_id(self, turn: int) -> str:
        """Return the id of a turn's sampling request. It differs between attempts."""
        attempt = f"again{self.attempt}/" if self.attempt else ""
        return f"{self.session_id}/{attempt}{turn}"

    def first_request(self, stop_ids: list[int]) -> SampleRequest:
        """Return what all sampling requests of the seat share; what differs is empty."""
        decoding = self.decoding
        return SampleRequest.model_construct(
            request_id="",
            prompt_ids=[],
            max_tokens=0,
            policy=self.policy,
            policy_version=self.policy_version,
            temperature=decoding.temperature,
            top_p=decoding.top_p,
            top_k=decoding.top_k,
            stop_ids=stop_ids,
            session_id=self.session_id,
            structured=decoding.structured,
            stop=decoding.stop,
        )

    def again(self) -> Self:
        """Return the plan of the next attempt at this episode."""
        others = tuple([other.again() for other in self.others])
        return replace(self, attempt=self.attempt + 1, others=others)

    @classmethod
    def for_policy(cls, policy: PlayedPolicy, decoding: Decoding, **episode: Any) -> Self:
        """Return the plan of an episode that a policy plays; `episode` has all that is not the policy's."""
        own: dict[str, Any] = {
            "policy": policy.name,
            "model": policy.model,
            "policy_version": policy.version,
            "limits": policy.limits,
            "system_prompt": policy.system_prompt,
            "reasoning": policy.reasoning,
        }
        return cls(decoding=decoding, **own | episode)

    @classmethod
    def from_request(cls, request: EpisodeRequest) -> Self:
        """Return the plan of an episode leased from the service."""
        first, *others = [
            cls._of_seat(request, agent, number)
            for number, agent in enumerate(request.seats)
            if request.seats[agent].table is None
        ]
        table = {
            agent: (seat.table, seat.sampling_seed) for agent, seat in request.seats.items() if seat.table
        }
        return replace(first, others=tuple(others), table=table) if others or table else first

    @classmethod
    def _of_seat(cls, request: EpisodeRequest, agent: str, number: int) -> Self:
        seat = request.seats[agent]
        return cls(
            episode_id=request.episode_id,
            seed=request.seed,
            policy=seat.policy,
            model=seat.model,
            environment=request.environment,
            task_index=request.task_index,
            data_sha256=request.data_sha256,
            policy_version=None if request.max_staleness and seat.is_newest else seat.policy_version,
            # Built from checked parts, for each of many episodes.
            decoding=Decoding.model_construct(
                temperature=seat.sampling.temperature if seat.temperature is None else seat.temperature,
                max_turn_tokens=seat.sampling.max_turn_tokens,
                seed=seat.sampling_seed,
            ),
            limits=request.limits,
            system_prompt=seat.system_prompt,
            tools=seat.tools,
            reasoning=seat.reasoning,
            executor=request.executor,
            retries=request.retries,
            agent=agent,
            seat=number,
            trained=seat.trained,
            group=request.group,
            group_size=request.group_size,
            lease_id=request.lease_id,
        )
