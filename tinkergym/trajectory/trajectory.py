"""Trajectories: what one agent saw, sampled and earned in one episode, exact to the token.

Plain frozen records. The agent loop writes them, they are sent as JSON, and the learner reads only their
segments, never the text.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, FiniteFloat, JsonValue, model_validator

from tinkergym.trajectory.bounded_numbers import Record
from tinkergym.trajectory.content_parts import MOST_PARTS, Content, ImageSpan, content_text, misplaced_image
from tinkergym.trajectory.turn_views import View


class StopReason(StrEnum):
    """Why an episode ended. Each value has one cause and is counted under its name."""

    TERMINATED = "terminated"
    """The environment reported that the task ended."""
    TRUNCATED = "truncated"
    """The environment cut the episode off at its own limit."""
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"
    """The episode's limit of sampled tokens was reached."""
    CONTEXT_LIMIT = "context_limit"
    """The next prompt leaves no room for a completion in the model's context."""
    EPISODE_TIMEOUT = "episode_timeout"
    ENVIRONMENT_ERROR = "environment_error"
    """`reset` or `step` raised, or returned something that the Gymnasium interface does not allow."""
    ENVIRONMENT_TIMEOUT = "environment_timeout"
    """`reset` or `step` took longer than `limits.step_timeout_seconds`."""
    INVALID_REWARD = "invalid_reward"
    """The reward was NaN, infinite or not a number, or `step` raised `InvalidRewardError`."""
    SAMPLING_FAILED = "sampling_failed"
    """The engine returned an error for a sampling request."""
    CONTEXT_OVERFLOW = "context_overflow"
    """As `context_limit`, at one seat of a game that the others cannot finish without it."""
    SEAT_FAILED = "seat_failed"
    """Another seat of the game failed; `error` says which and why."""
    OPPONENT_FAILED = "opponent_failed"
    """A player without a policy, such as an external model, did not act; `error` names the seat."""
    GAME_TIMEOUT = "game_timeout"
    """As `episode_timeout`, in a game. It ends for all seats and none is trained on: the seat whose turn it
    was did not use up the time alone."""
    ABANDONED = "abandoned"
    """The caller called `reset` or `close` in the middle of the episode."""
    TOO_STALE = "too_stale"
    """It was finished, but by a version of the policy that is older than its job allows."""


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
"""Episodes that ended for these reasons have a valid return and count in baselines; others do not."""

_ENDS_WITHOUT_TURN = COMPLETED_REASONS - {StopReason.CONTEXT_LIMIT, StopReason.EPISODE_TIMEOUT}

FAILED_REASONS = frozenset(
    {
        StopReason.ENVIRONMENT_ERROR,
        StopReason.ENVIRONMENT_TIMEOUT,
        StopReason.INVALID_REWARD,
        StopReason.SAMPLING_FAILED,
        StopReason.CONTEXT_OVERFLOW,
        StopReason.SEAT_FAILED,
        StopReason.OPPONENT_FAILED,
        StopReason.GAME_TIMEOUT,
    }
)
"""Failures. Such an episode may be played again. Abandoned and too stale episodes are not failures: nothing
went wrong in them."""


def has_return(stop_reason: str, *, has_turns: bool) -> bool:
    """Return whether an episode that ended so has a valid return; see `Trajectory.completed`."""
    return stop_reason in (COMPLETED_REASONS if has_turns else _ENDS_WITHOUT_TURN)


REASON_COMES_FIRST = frozenset(
    {
        StopReason.ENVIRONMENT_TIMEOUT,
        StopReason.SAMPLING_FAILED,
        StopReason.CONTEXT_OVERFLOW,
        StopReason.SEAT_FAILED,
        StopReason.GAME_TIMEOUT,
    }
)
"""The first line of their errors is the reason; the others are the location. Other errors are tracebacks,
whose last line it is."""


def reason_line(stop_reason: str, error: str) -> str:
    """Return the line of an episode's error that has the reason.

    Args:
        stop_reason: The episode's.
        error: Its text.
    """
    return error.strip().split("\n")[0 if stop_reason in REASON_COMES_FIRST else -1]


MOST_TOKENS = 2**20
"""The most ids in one list, such as a segment or a prompt."""

MOST_TURNS = 100_000
"""The most turns of one trajectory; it has at most as many segments."""


MOST_METRICS = 100
"""The most metric names that an environment may report for one turn."""

LONGEST_METRIC_NAME = 100
LARGEST_REWARD = 1e12
"""The largest reward of a turn, of either sign: sums over episodes and their squares stay finite."""

MetricValue = Annotated[FiniteFloat, Field(ge=-sys.float_info.max, le=sys.float_info.max)]
"""Environments count in their own units: any number that a float64 holds."""

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Logprob = Annotated[FiniteFloat, Field(ge=-1e6, le=1.0)]
"""In nats. Rounding may leave one slightly above 0."""

ONLY_AGENT = "agent_0"
"""The agent id of an environment with one agent."""

AgentId = Annotated[str, Field(min_length=1, max_length=100)]
"""PettingZoo's id of a player, as in `possible_agents`."""

MetricName = Annotated[str, Field(max_length=LONGEST_METRIC_NAME)]


MEAN = "mean/"
"""Prefix of the names of metrics that are averaged over an episode's turns, instead of summed."""


class Segment(Record):
    """A run of tokens with an unedited history. All lists have the same length T."""

    token_ids: list[int] = Field(max_length=MOST_TOKENS)
    loss_mask: list[bool] = Field(max_length=MOST_TOKENS)
    """True exactly where the policy sampled the token."""
    sampling_logprobs: list[Logprob | None] = Field(max_length=MOST_TOKENS)
    """In nats, at the sampling temperature; None exactly where `loss_mask` is False."""
    images: list[ImageSpan] = Field([], max_length=MOST_PARTS)
    """Positions of images, in order, on tokens that the policy did not sample."""

    @model_validator(mode="after")
    def _lists_agree(self) -> Self:
        if not len(self.token_ids) == len(self.loss_mask) == len(self.sampling_logprobs):
            raise ValueError("token_ids, loss_mask and sampling_logprobs must have the same length")
        if any(m == (p is None) for m, p in zip(self.loss_mask, self.sampling_logprobs, strict=True)):
            raise ValueError("a token has a sampling logprob if and only if its loss_mask is True")
        if self.images and (wrong := misplaced_image(self.images, self.loss_mask)):
            raise ValueError(wrong)
        return self


class Turn(Record):
    """One observation, the policy's action, and its reward."""

    segment: int = Field(ge=0)
    """Index into the trajectory's segments."""
    start: int = Field(ge=0)
    """The sampled tokens are at [start, end) of the segment."""
    end: int = Field(ge=0)
    policy_version: int = Field(ge=0)
    finish_reason: str
    """`stop`: the policy ended its completion; `length`: a limit cut it off."""
    observation: Content
    action: Content
    reward: FiniteFloat = Field(ge=-LARGEST_REWARD, le=LARGEST_REWARD)
    """0 for a completion at which the episode failed."""
    void: bool = False
    """Whether the action had no effect because another seat failed before its agent's next turn. It is not
    trained on."""
    metrics: dict[MetricName, MetricValue] = Field({}, max_length=MOST_METRICS)
    """Numbers that the environment reported under `info["metrics"]`."""
    move: int | None = Field(None, ge=1)
    """Its number among the actions of all policies of a game, from 1; None in an environment with one
    agent."""
    view: View | None = None
    """What the environment declared for people who watch, with the observation."""
    seconds: FiniteFloat | None = Field(None, ge=0)
    """When the action was complete, in seconds since the game's reset."""

    def __eq__(self, other: object) -> bool:
        """Compare everything but `seconds`, which differ when the same game is played again."""
        if not isinstance(other, Turn):
            return NotImplemented
        return super(Turn, self._timeless()).__eq__(other._timeless())

    __hash__ = None  # type: ignore[assignment] # it contains lists

    def _timeless(self) -> Self:
        return self if self.seconds is None else self.model_copy(update={"seconds": None})


class Trajectory(Record):
    """One agent's record of one episode."""

    agent: AgentId = ONLY_AGENT
    """The agent's id in the game."""
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
    """How often the episode failed before this record and was played again."""
    early_reward: FiniteFloat = Field(0.0, ge=-LARGEST_REWARD, le=LARGEST_REWARD)
    """Rewards before the agent's first action. They belong to no turn, so they are not trained on. Of an
    agent that never acted they are the return, with which its group's other episodes are compared."""
    final_observation: Content = ""
    """What the environment showed after the last action."""
    final_view: View | None = None
    """As `Turn.view`, after the last action."""
    template_variables: dict[str, JsonValue] = Field({})
    """Of the chat template, as this episode was rendered: the job's, its task's and the environment's."""
    trained: bool = True
    """Whether the job trains on this seat. False for an opponent's, such as a league's past version or the
    base model; the service sets it when it accepts the record."""

    @property
    def metrics(self) -> dict[str, float]:
        """The environment's numbers for the whole episode, by name: their sums over the turns.

        Of a name that begins with `mean/`: the mean over the turns that have it.
        """
        sums: dict[str, float] = defaultdict(float)
        counts: dict[str, int] = defaultdict(int)
        for turn in self.turns:
            for name, value in turn.metrics.items():
                sums[name] += value
                counts[name] += 1
        return {
            name: total / counts[name] if name.startswith(MEAN) else total for name, total in sums.items()
        }

    @property
    def episode_return(self) -> float:
        """The undiscounted sum of the agent's rewards."""
        return sum(turn.reward for turn in self.turns) + self.early_reward

    @property
    def completed(self) -> bool:
        """Whether the return is valid: it counts in means, baselines and results; see `COMPLETED_REASONS`.

        A game may end by another seat's move before this agent's first turn. It is won or lost all the same:
        an outcome without tokens to train on. An episode whose own limit came before its first completion has
        no return, which is not the same as a return of 0.
        """
        return has_return(self.stop_reason, has_turns=bool(self.turns))

    @property
    def failed(self) -> bool:
        """Whether the episode failed; see `FAILED_REASONS`."""
        return self.stop_reason in FAILED_REASONS

    @property
    def sampled_tokens(self) -> int:
        """How many tokens the policy sampled."""
        return sum(sum(segment.loss_mask) for segment in self.segments)

    @property
    def transcript(self) -> list[tuple[str, str]]:
        """The episode as readable (role, text) pairs; the environment is `user`, the policy `assistant`."""
        lines = [
            (role, content_text(content))
            for turn in self.turns
            for role, content in (("user", turn.observation), ("assistant", turn.action))
        ]
        final = content_text(self.final_observation)
        return [*lines, ("user", final)] if final else lines
