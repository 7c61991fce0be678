"""Trajectories: what one agent saw, sampled and earned in one episode, exact to the token.

Plain frozen records. They are written by the agent loop, travel as JSON, and are read by the learner, which
looks at the segments only: it never needs the text.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, FiniteFloat, model_validator

from tinkergym.trajectory.parts import MOST_PARTS, Content, ImageSpan, content_text, misplaced_image
from tinkergym.trajectory.record import Record


class StopReason(StrEnum):
    """Why an episode ended. Each value stands for one cause and is counted under its name."""

    TERMINATED = "terminated"
    """The environment said that the task ended."""
    TRUNCATED = "truncated"
    """The environment said that a limit of its own cut the episode off."""
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"
    """The episode's budget of sampled tokens was used up."""
    CONTEXT_LIMIT = "context_limit"
    """The next prompt leaves no room for an answer in the model's context."""
    EPISODE_TIMEOUT = "episode_timeout"
    ENVIRONMENT_ERROR = "environment_error"
    """`reset` or `step` raised, or returned what the Gymnasium interface does not allow."""
    ENVIRONMENT_TIMEOUT = "environment_timeout"
    """`reset` or `step` took longer than `limits.step_timeout_seconds`."""
    INVALID_REWARD = "invalid_reward"
    """The reward was NaN, infinite or no number, or `step` raised `InvalidRewardError`."""
    SAMPLING_FAILED = "sampling_failed"
    """The engine answered a request for tokens with an error."""
    CONTEXT_OVERFLOW = "context_overflow"
    """As `context_limit`, at a seat of a game that the others cannot finish without it."""
    SEAT_FAILED = "seat_failed"
    """Another seat of the game failed; `error` says which and why."""
    OPPONENT_FAILED = "opponent_failed"
    """A model elsewhere that plays a seat of the game gave no answer; `error` names the seat."""
    ABANDONED = "abandoned"
    """The caller reset or closed in the middle of the episode."""
    TOO_STALE = "too_stale"
    """It was played to its end, but by a version of the policy that is older than its job allows."""


COMPLETED_REASONS = frozenset(
    {
        StopReason.TERMINATED,
        StopReason.TRUNCATED,
        StopReason.TURN_LIMIT,
        StopReason.TOKEN_LIMIT,
        StopReason.CONTEXT_LIMIT,
        StopReason.EPISODE_TIMEOUT,
    }
)
"""Episodes that ended for these reasons have a trustworthy return and enter baselines; others do not."""


FAILED_REASONS = frozenset(
    {
        StopReason.ENVIRONMENT_ERROR,
        StopReason.ENVIRONMENT_TIMEOUT,
        StopReason.INVALID_REWARD,
        StopReason.SAMPLING_FAILED,
        StopReason.CONTEXT_OVERFLOW,
        StopReason.SEAT_FAILED,
        StopReason.OPPONENT_FAILED,
    }
)
"""Something broke. Such an episode may be played again; an abandoned one was not wanted any more, and one
that is too stale was played well."""


REASON_COMES_FIRST = frozenset(
    {
        StopReason.ENVIRONMENT_TIMEOUT,
        StopReason.SAMPLING_FAILED,
        StopReason.CONTEXT_OVERFLOW,
        StopReason.SEAT_FAILED,
    }
)
"""Errors of these begin with the reason, and may go on with where it happened. Others are tracebacks, which
end with it."""


def reason_line(stop_reason: str, error: str) -> str:
    """Return the line of an episode's error that says why it failed.

    Args:
        stop_reason: The episode's.
        error: Its text.
    """
    first, *others = error.strip().split("\n")
    if others and stop_reason not in REASON_COMES_FIRST:
        return others[-1]
    return first.removesuffix("; it is here:")


MOST_TOKENS = 2**20
"""In one list of token ids, such as a segment or a prompt."""

MOST_TURNS = 100_000
"""Of one trajectory; its segments are no more."""


MOST_METRICS = 100
"""Names of metrics that an environment may report for one turn."""

LONGEST_METRIC_NAME = 100
LARGEST_REWARD = 1e12
"""Of a turn, with either sign: sums over episodes and their squares stay finite."""

ONLY_AGENT = "agent_0"
"""The agent id of an environment with one agent."""

AgentId = Annotated[str, Field(min_length=1, max_length=100)]
"""PettingZoo's id of a player, as in `possible_agents`."""

MetricName = Annotated[str, Field(max_length=LONGEST_METRIC_NAME)]


class Segment(Record):
    """A run of tokens whose history was never edited. All lists have one length T."""

    token_ids: list[int] = Field(max_length=MOST_TOKENS)
    loss_mask: list[bool] = Field(max_length=MOST_TOKENS)
    """True exactly where the policy sampled the token."""
    sampling_logprobs: list[FiniteFloat | None] = Field(max_length=MOST_TOKENS)
    """In nats, at the sampling temperature; None exactly where `loss_mask` is False."""
    images: list[ImageSpan] = Field([], max_length=MOST_PARTS)
    """Where images stand, in order: on tokens that the policy did not sample."""

    @model_validator(mode="after")
    def _lists_agree(self) -> Self:
        if not len(self.token_ids) == len(self.loss_mask) == len(self.sampling_logprobs):
            raise ValueError("token_ids, loss_mask and sampling_logprobs must have one length")
        if any(m == (p is None) for m, p in zip(self.loss_mask, self.sampling_logprobs, strict=True)):
            raise ValueError("a token has a sampling logprob if and only if its loss_mask is True")
        if self.images and (wrong := misplaced_image(self.images, self.loss_mask)):
            raise ValueError(wrong)
        return self


class Turn(Record):
    """One observation, the policy's answer, and what the environment paid for it."""

    segment: int = Field(ge=0)
    """Index into the trajectory's segments."""
    start: int = Field(ge=0)
    """The sampled tokens stand at [start, end) of the segment."""
    end: int = Field(ge=0)
    policy_version: int = Field(ge=0)
    finish_reason: str
    """`stop`: the policy ended its answer; `length`: a limit cut it."""
    observation: Content
    action: Content
    reward: FiniteFloat = Field(ge=-LARGEST_REWARD, le=LARGEST_REWARD)
    """0 for an answer at which the episode failed."""
    void: bool = False
    """Whether nothing came of the answer, since another seat failed before its agent's turn came again.
    Nothing is learned from it.
    """
    metrics: dict[MetricName, FiniteFloat] = Field({}, max_length=MOST_METRICS)
    """Named numbers the environment put under `info["metrics"]`."""


class Trajectory(Record):
    """One agent's record of one episode."""

    agent: AgentId = ONLY_AGENT
    """Whose record it is, as the game names it."""
    segments: list[Segment] = Field(max_length=MOST_TURNS)
    turns: list[Turn] = Field(max_length=MOST_TURNS)
    terminated: bool
    truncated: bool
    stop_reason: StopReason
    error: str = ""
    """The traceback or message behind a stop reason that is a failure."""
    seed: int
    task_index: int | None = None
    retries: int = Field(0, ge=0)
    """How often the episode had failed and was played again before this record of it."""
    early_reward: FiniteFloat = Field(0.0, ge=-LARGEST_REWARD, le=LARGEST_REWARD)
    """What the agent earned before its first action. It is of no turn, so nothing is learned from it."""
    final_observation: Content = ""
    """What the environment showed after the last action; nobody answered it."""

    @property
    def episode_return(self) -> float:
        """The undiscounted sum of all that the agent earned."""
        return sum(turn.reward for turn in self.turns) + self.early_reward

    @property
    def completed(self) -> bool:
        """Whether the return may be learned from; see `COMPLETED_REASONS`.

        An episode that was cut off before the first answer earned nothing, which is not the same as 0.
        """
        return self.stop_reason in COMPLETED_REASONS and bool(self.turns)

    @property
    def failed(self) -> bool:
        """Whether something broke; see `FAILED_REASONS`."""
        return self.stop_reason in FAILED_REASONS

    @property
    def sampled_tokens(self) -> int:
        """How many tokens the policy sampled."""
        return sum(sum(segment.loss_mask) for segment in self.segments)

    @property
    def transcript(self) -> list[tuple[str, str]]:
        """The episode to read: (role, text) in order; the environment is `user`, the policy `assistant`."""
        lines = [
            (role, content_text(content))
            for turn in self.turns
            for role, content in (("user", turn.observation), ("assistant", turn.action))
        ]
        final = content_text(self.final_observation)
        return [*lines, ("user", final)] if final else lines
