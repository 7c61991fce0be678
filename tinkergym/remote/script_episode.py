"""One episode of a user's own loop: turns `act` and `step` into the events of an agent loop.

Does no input or output. Unlike in a rollout worker, the policy's next prompt is known only when the script
calls `act`, so the outcome of a step is kept until then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tinkergym.agent.agent_loop import AgentLoop, AgentState
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import EpisodeProtocolError
from tinkergym.messages import Observation
from tinkergym.schema.episodes import EpisodeRequest
from tinkergym.schema.sampling import Completion, SampleRequest
from tinkergym.trajectory.trajectory import StopReason, Trajectory


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of a step, until the next observation is known."""

    reward: Any
    info: dict[str, Any]


class ScriptEpisode:
    """Records one leased episode."""

    def __init__(
        self,
        request: EpisodeRequest,
        renderer: Renderer,
        environment_prompt: str | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the episode.

        Args:
            request: The lease.
            renderer: The renderer of the job's model.
            environment_prompt: The environment's own system prompt, if the job has none.
            clock: Seconds, monotonic.
        """
        self._clock = clock
        self._ends_at = clock() + request.limits.episode_timeout_seconds
        self.request = request
        self.observation: Any = ""
        """The environment's last observation."""
        self._loop = AgentLoop(renderer, EpisodePlan.from_request(request))
        self._environment_prompt = environment_prompt
        self._pending: SampleRequest | None = None
        self._outcome: _Outcome | None = None
        self._answers = 0

    @property
    def over(self) -> bool:
        """Whether the record is complete."""
        return self._loop.state is AgentState.TERMINATED

    def trajectories(self) -> list[Trajectory]:
        """Return the record of a finished episode."""
        return [self._loop.trajectory()]

    def fail(self, reason: StopReason, error: str) -> None:
        """End the episode for an external reason. A finished episode is unchanged."""
        self._loop.fail(reason, error)

    def hears(self, observation: Observation, info: Any = None) -> SampleRequest | None:
        """Take the observation to act on. Returns None if a limit has ended the episode.

        Raises:
            EpisodeProtocolError: The last action was not used in a step.
        """
        if self.over:
            return None
        if self._pending is not None:  # Sampling failed, and this is a retry.
            return self._pending
        if self._loop.state is AgentState.PENDING:
            self._pending = self._loop.begin(observation, info, environment_prompt=self._environment_prompt)
        elif self._outcome is None:
            raise EpisodeProtocolError(
                "act() was called twice without a step() in between",
                hint="pass the last action to env.step() first",
            )
        else:
            outcome, self._outcome = self._outcome, None
            self._pending = self._loop.stepped(observation, outcome.reward, False, False, outcome.info)
        if self._clock() >= self._ends_at:
            self._loop.fail(StopReason.EPISODE_TIMEOUT, "the episode's time ran out")
            self._pending = None
        return self._pending

    def answers(self, completion: Completion) -> str:
        """Take the sampled tokens and return the policy's text."""
        self._pending = None
        self._answers += 1
        return self._loop.receive(completion)

    def expect_an_answer(self) -> None:
        """Check that the policy has acted since the last step.

        Raises:
            EpisodeProtocolError: It has not.
        """
        if self._loop.state is not AgentState.INTERACTING or self._outcome is not None:
            raise EpisodeProtocolError(
                "step() was called before the policy acted, so the step cannot be trained on",
                hint="get the action from env.policy.act(observation)",
            )

    def stepped(
        self, observation: Any, reward: Any, terminated: bool, truncated: bool, info: dict[str, Any]
    ) -> None:
        """Record what the environment returned."""
        self.observation = observation
        last_turn = self._answers >= self.request.limits.max_turns
        # After the last turn no `act` follows that could pass the outcome on.
        if terminated or truncated or last_turn:
            shown = observation if isinstance(observation, str | Mapping | list) else ""
            self._loop.stepped(shown, reward, terminated, truncated, info)
        else:
            self._outcome = _Outcome(reward, info)
