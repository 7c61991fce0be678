"""Coordinator: the seats of one game, each with its own agent loop, in the order of the game's turns.

The game says whose turn it is. The coordinator advances that seat's loop, credits every seat with the rewards
since its own last action, and ends the episode for all seats together. Like the loop it knows neither sampler
nor environment; it reads a clock only to record when each action was made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tinkergym.agent.agent_loop import AgentLoop, AgentState
from tinkergym.errors import EpisodeProtocolError, InternalServiceError
from tinkergym.schema.sampling import Completion, SampleRequest
from tinkergym.trajectory.trajectory import (
    COMPLETED_REASONS,
    FAILED_REASONS,
    StopReason,
    Trajectory,
    reason_line,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """An agent's state when the game turns to it. Values are the game's own, unchecked."""

    agent: str
    observation: Any
    """Events since its last action."""
    reward: Any
    """Rewards since then."""
    terminated: Any
    truncated: Any
    info: Any

    @classmethod
    def in_game(cls, game: Any) -> Standing:
        """Return the state of the agent whose turn it is in a PettingZoo AEC game."""
        observation, reward, terminated, truncated, info = game.last()
        return cls(
            agent=game.agent_selection,
            observation=observation,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            info=info,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The state of a game after its reset or an action."""

    agents: tuple[str, ...]
    """All agents of the game, including those who join later."""
    ended: tuple[Standing, ...]
    """Agents whose game is over since the last position."""
    turn: Standing | None
    """State of the agent that acts next; None if the game is over."""
    owed: Mapping[str, Any] = field(default_factory=dict)
    """What the agents that wait have earned so far since their last action."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """After a reset: the system prompts of agents that have a different one."""


class Coordinator:
    """Several agents' sides of one episode.

    Used like an `AgentLoop`: `begin`, then `receive` and `stepped` in turn until a call returns None.
    If one seat fails or its prompt exceeds the context, the episode fails for all seats. If one reaches a
    limit of turns or tokens, the episode is cut off for all.

    Example:
        >>> request = coordinator.begin(table.reset(seed=1))
        >>> while request is not None:
        ...     action = coordinator.receive(sample(request))
        ...     request = coordinator.stepped(table.step(action))
        >>> coordinator.trajectories()
    """

    def __init__(
        self, loops: Mapping[str, AgentLoop], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Combine the loops.

        Args:
            loops: By agent id; each has not begun.
            clock: Returns seconds, monotonic; they are only recorded.
        """
        self._clock, self._begun_at = clock, 0.0
        self._moves: dict[str, list[tuple[int, float]]] = {agent: [] for agent in loops}
        """By agent, for each of its actions: its number among those of all agents, and when it was made."""
        self._loops = dict(loops)
        self._state = AgentState.PENDING
        self._stop_reason: StopReason | None = None
        self._environment_prompt: str | None = None
        self._prompts: Mapping[str, str] = {}
        self._acting = ""
        """The agent whose turn it is, or was last."""
        self._owed: Mapping[str, Any] = {}
        self._failed = ""
        """The seat whose failure ended the episode."""
        self._error = ""
        """Its error."""

    @property
    def state(self) -> AgentState:
        """What the episode waits for."""
        return self._state

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the episode ended, from the seat that ended it; None while it runs."""
        return self._stop_reason

    @property
    def acting(self) -> str:
        """The agent whose turn it is; empty before the first."""
        return self._acting

    def begin(self, position: Position, *, environment_prompt: str | None = None) -> SampleRequest | None:
        """Handle the position after the game's reset.

        Args:
            position: The first.
            environment_prompt: The game's own system prompt, for seats that have none.

        Returns:
            The request for the first completion, or None if the episode is already over.
        """
        self._expect(AgentState.PENDING, "begin")
        self._begun_at = self._clock()
        self._environment_prompt, self._prompts = environment_prompt, position.prompts
        if sorted(position.agents) != sorted(self._loops):
            agents, seats = ", ".join(position.agents), ", ".join(self._loops)
            text = f"the game has the agents {agents}, but the episode has seats for {seats}"
            self.fail(StopReason.ENVIRONMENT_ERROR, text)
            return None
        return self._follow(position)

    def receive(self, completion: Completion) -> str:
        """Take the tokens sampled for the last request and return the action for the game.

        Raises:
            InternalServiceError: The tokens are not a valid completion of that request; the episode has
                failed.
        """
        self._expect(AgentState.GENERATING, "receive")
        try:
            action = self._loops[self._acting].receive(completion)
        except InternalServiceError:
            self._end_with_failure_of(self._acting)
            raise
        number = 1 + sum(map(len, self._moves.values()))
        self._moves[self._acting].append((number, max(0.0, self._clock() - self._begun_at)))
        self._state = AgentState.INTERACTING
        return action

    def stepped(self, position: Position) -> SampleRequest | None:
        """Handle the position after the action.

        Returns:
            The request for the next completion, of any seat; None if the episode is over.
        """
        self._expect(AgentState.INTERACTING, "stepped")
        return self._follow(position)

    def fail(self, stop_reason: StopReason, error: str = "") -> None:
        """End the episode for an external reason. A second end is ignored.

        A failure belongs to the acting seat, unless a player without a policy failed. A limit of turns or
        tokens cuts the episode off for all.
        """
        if self._state is AgentState.TERMINATED:
            return
        if stop_reason is StopReason.EPISODE_TIMEOUT:
            # A single agent may be slow by its own doing. Here one seat's slowness would decide for others.
            stop_reason, error = StopReason.GAME_TIMEOUT, error or "the time of the game ran out"
        if stop_reason in COMPLETED_REASONS:
            self._cut_off(stop_reason, error)
        elif stop_reason is StopReason.OPPONENT_FAILED:
            self._end(stop_reason)
            for loop in self._loops.values():
                loop.fail(stop_reason, error, void=True)
        elif self._acting and stop_reason in FAILED_REASONS:
            self._loops[self._acting].fail(stop_reason, error)
            self._end_failed(self._acting, stop_reason, error)
        else:
            for loop in self._loops.values():
                loop.fail(stop_reason, error)
            self._end(stop_reason)

    def trajectories(self) -> list[Trajectory]:
        """Return the record of each seat, in the order of the loops.

        Raises:
            EpisodeProtocolError: The episode is not over.
        """
        self._expect(AgentState.TERMINATED, "trajectories")
        records = [self._in_order(loop.trajectory()) for loop in self._loops.values()]
        return [self._as_failed(one) for one in records] if self._failed else records

    # --- inside ---

    def _in_order(self, record: Trajectory) -> Trajectory:
        """Return a seat's record with the number and the time of each of its actions."""
        turns = [
            turn.model_copy(update={"move": number, "seconds": seconds})
            for turn, (number, seconds) in zip(record.turns, self._moves[record.agent], strict=True)
        ]
        return record.model_copy(update={"turns": turns})

    def _expect(self, state: AgentState, call: str) -> None:
        if self._state is not state:
            raise EpisodeProtocolError(
                f"{call}() was called while the episode is {self._state.value}",
                hint="the order is begin, then receive and stepped in turn until a call returns None",
            )

    def _follow(self, position: Position) -> SampleRequest | None:
        self._owed = position.owed
        for standing in position.ended:
            if not self._left(standing):
                return None
        if position.turn is not None:
            return self._turn(position.turn)
        playing = [agent for agent, loop in self._loops.items() if loop.state is AgentState.INTERACTING]
        if playing:
            text = f"the game was over before it had ended for {', '.join(playing)}"
            self.fail(StopReason.ENVIRONMENT_ERROR, text)
            return None
        # An agent that never joined has no end of its own.
        self._cut_off(StopReason.TERMINATED, "")
        return None

    def _left(self, standing: Standing) -> bool:
        """End the game for one agent; return whether the episode continues."""
        loop = self._loop_of(standing.agent)
        if loop is None:
            return False
        if loop.state is AgentState.PENDING:
            loop.never_acted(standing.reward, standing.terminated, standing.truncated)
        else:
            loop.stepped(
                standing.observation, standing.reward, standing.terminated, standing.truncated, standing.info
            )
        if loop.stop_reason in FAILED_REASONS:
            self._end_with_failure_of(standing.agent)
            return False
        return True

    def _turn(self, standing: Standing) -> SampleRequest | None:
        loop, agent = self._loop_of(standing.agent), standing.agent
        if loop is None:
            return None
        if loop.state is AgentState.PENDING:
            request = loop.begin(
                standing.observation,
                standing.info,
                environment_prompt=self._prompts.get(agent, self._environment_prompt),
                reward=standing.reward,
            )
        else:
            request = loop.stepped(
                standing.observation, standing.reward, standing.terminated, standing.truncated, standing.info
            )
        if request is not None:
            self._acting, self._state = agent, AgentState.GENERATING
            return request
        reason = loop.stop_reason
        assert reason is not None
        if reason in {StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT}:
            self._cut_off(reason, f"agent {agent!r} reached its {reason.value}")
        else:
            self._end_with_failure_of(agent)
        return None

    def _loop_of(self, agent: str) -> AgentLoop | None:
        """Return the loop of the agent whose turn it is; None if that ends the episode."""
        loop = self._loops.get(agent)
        if loop is not None and loop.state in {AgentState.PENDING, AgentState.INTERACTING}:
            return loop
        what = "there is no such seat" if loop is None else "its game had ended"
        self.fail(StopReason.ENVIRONMENT_ERROR, f"it is the turn of agent {agent!r}, but {what}")
        return None

    def _cut_off(self, stop_reason: StopReason, error: str) -> None:
        for agent, loop in self._loops.items():
            loop.cut_off(stop_reason, self._owed.get(agent, 0.0), error)
        for agent, loop in self._loops.items():
            if loop.stop_reason in FAILED_REASONS:
                self._end_with_failure_of(agent)
                return
        self._end(stop_reason)

    def _end_with_failure_of(self, agent: str) -> None:
        """End the episode for all because one seat failed; other seats' pending actions have no effect."""
        loop = self._loops[agent]
        reason = loop.stop_reason
        assert reason is not None
        if reason is StopReason.CONTEXT_LIMIT:
            # A single agent with a full context is cut off. Here the others could not continue without it.
            reason = StopReason.CONTEXT_OVERFLOW
        self._end_failed(agent, reason, loop.error)

    def _end_failed(self, agent: str, reason: StopReason, error: str) -> None:
        self._failed, self._error = agent, error
        # First, because `_why_failed` reads the reason.
        self._end(reason)
        for loop in self._loops.values():
            loop.fail(StopReason.SEAT_FAILED, self._why_failed(), void=True)

    def _end(self, stop_reason: StopReason) -> None:
        self._stop_reason, self._state = stop_reason, AgentState.TERMINATED

    def _why_failed(self) -> str:
        assert self._stop_reason is not None
        line = reason_line(self._stop_reason.value, self._error)
        return f"agent {self._failed!r} failed with {self._stop_reason.value}" + (f": {line}" if line else "")

    def _as_failed(self, record: Trajectory) -> Trajectory:
        """Return a seat's record of a failed episode, even if the seat had left it before."""
        changes: dict[str, object]
        if record.agent == self._failed:
            error = f"agent {record.agent!r}: {self._error}"
            changes = {"stop_reason": self._stop_reason, "error": error}
        elif record.stop_reason in FAILED_REASONS:
            return record
        else:
            changes = {"stop_reason": StopReason.SEAT_FAILED, "error": self._why_failed()}
        return record.model_copy(update=changes)
