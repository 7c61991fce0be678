"""What an episode is to be: everything that is decided before it begins."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

from tinkergym.wire import EnvironmentRef, EpisodeRequest, ExecutorName, Limits, Reasoning, Structured


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodePlan:
    """One episode: the environment, the seeds, who answers, and where it is cut off."""

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
    sampling_seed: int = 0
    """Turn k samples with seed `sampling_seed + k`."""
    policy_version: int | None = None
    """None takes the newest."""
    temperature: float = 1.0
    """0 takes the likeliest token."""
    max_turn_tokens: int = 64
    top_p: float = 1.0
    """See `Cut`; in training 1."""
    top_k: int = 0
    """See `Cut`; in training 0."""
    structured: Structured | None = None
    """What each answer must look like; in training there is none."""
    limits: Limits = field(default_factory=Limits)
    system_prompt: str | None = None
    """None leaves it to the environment's own."""
    reasoning: Reasoning = "keep"
    """Whether later turns see the reasoning of earlier answers."""
    executor: ExecutorName = "thread"
    """Where the environment lives, unless whoever plays has an executor of its own."""
    retries: int = 0
    """How often the episode is played again if it fails; with the same seeds, so with the same result as if
    nothing had failed.
    """
    attempt: int = 0
    """How often it has failed already."""
    agent: str = "agent_0"
    lease_id: str = ""

    @property
    def session_id(self) -> str:
        """What the episode's sampling requests have in common: its lease, so that two attempts never mix."""
        return self.lease_id or self.episode_id

    def request_id(self, turn: int) -> str:
        """Return the name of a turn's request for tokens; an answer to an earlier attempt fits no other."""
        attempt = f"again{self.attempt}/" if self.attempt else ""
        return f"{self.session_id}/{attempt}{turn}"

    def again(self) -> Self:
        """Return the plan of the next attempt at this episode."""
        return replace(self, attempt=self.attempt + 1)

    @classmethod
    def from_request(cls, request: EpisodeRequest) -> Self:
        """Return the plan of an episode that the service leased to this worker."""
        return cls(
            episode_id=request.episode_id,
            seed=request.seed,
            policy=request.policy,
            model=request.model,
            environment=request.environment,
            task_index=request.task_index,
            sampling_seed=request.sampling_seed,
            policy_version=None if request.max_staleness else request.policy_version,
            temperature=request.sampling.temperature,
            max_turn_tokens=request.sampling.max_turn_tokens,
            limits=request.limits,
            system_prompt=request.system_prompt,
            reasoning=request.reasoning,
            executor=request.executor,
            retries=request.retries,
            lease_id=request.lease_id,
        )
