"""One episode of a user's own loop: turns `act` and `step` into the events of an agent loop.

No input or output. The one difference to a rollout worker: what the policy hears after a step is known only
when the script calls `act`, so the step's outcome is kept until then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tinkergym.agent.agent_loop import AgentLoop, AgentState
from tinkergym.agent.plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import EpisodeProtocolError
from tinkergym.messages import Observation
from tinkergym.schema.episodes import EpisodeRequest
from tinkergym.schema.sampling import Completion, SampleRequest
from tinkergym.trajectory.trajectory import StopReason, Trajectory


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a step paid, until the policy hears what it showed."""

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
        """Begin.

        Args:
            request: The lease.
            renderer: Of the job's model.
            environment_prompt: The environment's own system prompt, if the job has none.
            clock: Seconds, monotonic.
        """
        self._clock = clock
        self._ends_at = clock() + request.limits.episode_timeout_seconds
        self.request = request
        self.observation: Any = ""
        """The last one that the environment showed."""
        self._loop = AgentLoop(renderer, EpisodePlan.from_request(request))
        self._environment_prompt = environment_prompt
        self._pending: SampleRequest | None = None
        self._outcome: _Outcome | None = None
        self._answers = 0

    @property
    def over(self) -> bool:
        """Whether the record is complete."""
        return self._loop.state is AgentState.TERMINATED

    def trajectory(self) -> Trajectory:
        """Return the record of an episode that is over."""
        return self._loop.trajectory()

    def fail(self, reason: StopReason, error: str) -> None:
        """End the episode for a reason outside of it; one that is over stays as it ended."""
        self._loop.fail(reason, error)

    def took(self, call: str, seconds: float) -> None:
        """Note how long a `reset` or `step` took; in a script's own thread none can be interrupted."""
        allowed = self.request.limits.step_timeout_seconds
        if seconds > allowed:
            text = f"{call} returned after {seconds:.3g} s; limits.step_timeout_seconds is {allowed:g}"
            self._loop.fail(StopReason.ENVIRONMENT_TIMEOUT, text)

    def hears(self, observation: Observation) -> SampleRequest | None:
        """Take what the policy is to answer; None if a limit has ended the episode.

        Raises:
            EpisodeProtocolError: the last answer was not used in a step.
        """
        if self.over:
            return None
        if self._pending is not None:  # sampling it failed, and this is the next try
            return self._pending
        if self._loop.state is AgentState.PENDING:
            self._pending = self._loop.begin(observation, environment_prompt=self._environment_prompt)
        elif self._outcome is None:
            raise EpisodeProtocolError(
                "act() was called twice without a step() between",
                hint="take the last answer into env.step() first",
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
        """Check that the policy has answered since the last step.

        Raises:
            EpisodeProtocolError: it has not.
        """
        if self._loop.state is not AgentState.INTERACTING or self._outcome is not None:
            raise EpisodeProtocolError(
                "step() was called before the policy answered, so nothing could be learned from it",
                hint="take the action from env.policy.act(observation)",
            )

    def stepped(
        self, observation: Any, reward: Any, terminated: bool, truncated: bool, info: dict[str, Any]
    ) -> None:
        """Take what the environment returned."""
        self.observation = observation
        last_turn = self._answers >= self.request.limits.max_turns
        if terminated or truncated or last_turn:
            shown = observation if isinstance(observation, str | Mapping | list) else ""
            self._loop.stepped(shown, reward, terminated, truncated, info)
        else:
            self._outcome = _Outcome(reward, info)
