"""One episode for a trainer that does its own sampling: prompts of token ids out, sampled ids in.

The agent loop does the work, so sampled ids are never re-tokenized, and limits, rewards and messages are
checked as in every other episode. There is no trajectory: the trainer keeps its own, with the logprobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from tinkergym.agent.agent_loop import AgentLoop
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import EpisodeProtocolError, InvalidEnvironmentError, InvalidRewardError
from tinkergym.rollout.environment_host import AnyEnv, system_prompt_of
from tinkergym.schema.jobs.parts import Limits
from tinkergym.schema.sampling import Completion, SampleRequest
from tinkergym.trajectory.trajectory import FAILED_REASONS, StopReason

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TokenStep:
    """The result of a reset or an action."""

    prompt_ids: list[int]
    """The prompt to sample after; empty when the episode is over."""
    reward: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    stop_reason: StopReason | None = None
    """Why the episode is over; None while it continues."""


class TokenEpisode:
    """An environment and the conversation with it. The environment runs in its own thread."""

    def __init__(
        self, make_env: Callable[[], AnyEnv], renderer: Renderer, *, seed: int, max_turns: int
    ) -> None:
        """Describe the episode; nothing is created yet."""
        plan = EpisodePlan(episode_id="episode", seed=seed, policy="", limits=Limits(max_turns=max_turns))
        self._make_env, self._seed = make_env, seed
        self.stop_ids = renderer.stop_ids
        """Token ids that end a completion."""
        self._loop = AgentLoop(renderer, plan)
        self._thread = ThreadPoolExecutor(1, "environment")
        self._env: AnyEnv | None = None
        self._request: SampleRequest | None = None

    async def begin(self) -> TokenStep:
        """Create and reset the environment.

        Raises:
            InvalidEnvironmentError: Its observation cannot be rendered by the model's chat template.
        """
        return await self._in_thread(self._begin)

    async def answer(self, token_ids: Sequence[int]) -> TokenStep:
        """Act with the ids sampled after the last prompt.

        Args:
            token_ids: The sampled ids, including the token that ended the completion.

        Raises:
            EpisodeProtocolError: The episode has not begun, or is over.
            InternalServiceError: There are no tokens.
            InvalidEnvironmentError: The environment returned something that the Gymnasium interface does not
                allow.
            InvalidRewardError: The reward is not a finite number.
        """
        return await self._in_thread(lambda: self._answer(token_ids))

    async def close(self) -> None:
        """Close the environment, if one was created, and end its thread."""
        if self._env is not None:
            await self._in_thread(self._env.close)
        self._thread.shutdown(wait=False)

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    def _begin(self) -> TokenStep:
        self._env = env = self._make_env()
        observation, _ = env.reset(seed=self._seed)
        self._request = self._loop.begin(observation, environment_prompt=system_prompt_of(env))
        return self._outcome()

    def _answer(self, token_ids: Sequence[int]) -> TokenStep:
        if self._env is None or self._request is None:
            raise EpisodeProtocolError(
                "no action is expected now", hint="call begin first, and stop where it is over"
            )
        ended = bool(token_ids) and token_ids[-1] in self.stop_ids
        completion = Completion(
            request_id=self._request.request_id,
            token_ids=list(token_ids),
            # The trainer keeps the logprobs; the record here is discarded.
            sampling_logprobs=[0.0] * len(token_ids),
            finish_reason="stop" if ended else "length",
            policy_version=0,
        )
        action = self._loop.receive(completion)
        observation, reward, terminated, truncated, info = self._env.step(action)
        self._request = self._loop.stepped(observation, reward, terminated, truncated, info)
        return self._outcome(reward, (info or {}).get("metrics"))

    def _outcome(self, reward: object = 0.0, metrics: dict[str, float] | None = None) -> TokenStep:
        loop = self._loop
        if loop.stop_reason is StopReason.INVALID_REWARD:
            raise InvalidRewardError(loop.error)
        if loop.stop_reason in FAILED_REASONS:
            raise InvalidEnvironmentError(loop.error)
        prompt_ids = self._request.prompt_ids if self._request is not None else []
        return TokenStep(
            prompt_ids=prompt_ids,
            reward=float(reward),  # type: ignore[arg-type] # the loop has checked it
            metrics=dict(metrics or {}),
            stop_reason=loop.stop_reason,
        )
