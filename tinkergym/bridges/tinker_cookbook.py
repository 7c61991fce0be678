"""Our environments in tinker-cookbook's training loops. Needs the package `tinker-cookbook`.

Sampled ids are never tokenised again: an observation is the one before, the sampled ids, and the delta that
the model's chat template writes after them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import chz
import tinker
from tinker_cookbook.rl import types
from tinker_cookbook.tokenizer_utils import get_tokenizer

from tinkergym.bridges.hugging_face import renderer_of
from tinkergym.loop.environment_host import AnyEnv, system_prompt_of
from tinkergym.loop.renderer import Renderer
from tinkergym.messages import assistant, observation_messages, opening_messages
from tinkergym.registration import make


class GymEnv(types.Env):
    """One episode; single-use, as all environments there. It lives in a thread of its own."""

    def __init__(self, make_env: Callable[[], AnyEnv], seed: int, renderer: Renderer, max_turns: int) -> None:
        """Say what the episode is to be; nothing is made yet."""
        self._make, self._seed, self._renderer, self._turns_left = make_env, seed, renderer, max_turns
        self._thread = ThreadPoolExecutor(1, "environment")
        self._env: AnyEnv | None = None

    async def initial_observation(self) -> tuple[tinker.ModelInput, list[int]]:
        """Reset the environment and return the first prompt."""
        self._env = env = await self._call(self._make)
        observation, _ = await self._call(lambda: env.reset(seed=self._seed))
        self._history = opening_messages(
            observation_messages(observation), job_prompt=None, environment_prompt=system_prompt_of(env)
        )
        self._ids = self._renderer.start(self._history)
        return tinker.ModelInput.from_ints(self._ids), self._renderer.stop_ids

    async def step(self, action: list[int], *, extra: types.ActionExtra | None = None) -> types.StepResult:
        """Act with the text of the sampled ids."""
        env, text = self._env, self._renderer.decode_answer(action)
        assert env is not None, "initial_observation comes first"
        observation, reward, terminated, truncated, info = await self._call(lambda: env.step(text))
        self._turns_left -= 1
        end = "completed" if terminated else "max_turns" if truncated or self._turns_left < 1 else ""
        if not end:
            new = observation_messages(observation)
            self._history += [assistant(text), *new]
            closed = bool(action) and action[-1] in self._renderer.stop_ids
            if self._renderer.rewrites_history(self._history):
                self._ids = self._renderer.start(self._history)
            else:
                self._ids = [*self._ids, *action, *self._renderer.continuation(new, answer_closed=closed)]
            end = "context_overflow" if len(self._ids) >= self._renderer.context_length else ""
        return types.StepResult(
            reward=float(reward),
            episode_done=bool(end),
            next_observation=tinker.ModelInput.from_ints([] if end else self._ids),
            next_stop_condition=self._renderer.stop_ids,
            metrics={**info.get("metrics", {}), **({f"{types.STOP_METRIC_PREFIX}{end}": 1.0} if end else {})},
        )

    async def close(self) -> None:
        """Close the environment and end its thread."""
        if self._env is not None:
            await self._call(self._env.close)
        self._thread.shutdown(wait=False)

    async def _call(self, function: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)


@dataclass
class GymGroup(types.EnvGroupBuilder):
    """Episodes of one seed, so they start equal."""

    config: GymDatasetBuilder
    seed: int
    envs: list[GymEnv] = field(default_factory=list)

    async def make_envs(self) -> Sequence[types.Env]:
        """Return the group's episodes."""
        config = self.config
        renderer = renderer_of(get_tokenizer(config.model_name), context_length=config.context_length)
        kwargs = config.env_kwargs
        for _ in range(config.group_size):
            env = GymEnv(lambda: make(config.env_id, **kwargs), self.seed, renderer, config.max_turns)
            self.envs.append(env)
        return self.envs

    async def cleanup(self) -> None:
        """Close what `make_envs` opened."""
        while self.envs:
            await self.envs.pop().close()


@dataclass
class GymDataset(types.RLDataset):
    """Groups whose seeds count up."""

    config: GymDatasetBuilder

    def get_batch(self, index: int) -> Sequence[GymGroup]:
        """Return the groups of one train step."""
        first = self.config.seed + index * self.config.batch_size
        return [GymGroup(self.config, seed) for seed in range(first, first + self.config.batch_size)]

    def __len__(self) -> int:
        return self.config.batches


@chz.chz
class GymDatasetBuilder(types.RLDatasetBuilder):
    """What a configuration of tinker-cookbook names: `GymDatasetBuilder(env_id=..., model_name=...)`."""

    env_id: str
    model_name: str
    env_kwargs: dict[str, Any] = chz.field(default_factory=dict)
    batch_size: int = 16
    group_size: int = 8
    batches: int = 100
    seed: int = 0
    max_turns: int = 50
    context_length: int = 32_768

    async def __call__(self) -> tuple[GymDataset, None]:
        """Return the training data; there is no test set."""
        return GymDataset(self), None
