"""Our environments in tinker-cookbook's training loops. Needs the package `tinker-cookbook`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tinkergym.bridges.cookbook_package import chz, get_tokenizer, tinker, types
from tinkergym.bridges.hugging_face_renderer import renderer_of
from tinkergym.bridges.token_episode import TokenEpisode
from tinkergym.registration.environments import make
from tinkergym.trajectory.trajectory import StopReason

_REASONS = {StopReason.TERMINATED: "completed", StopReason.CONTEXT_LIMIT: "context_overflow"}


@dataclass
class GymEnv(types.Env):
    """One episode; single-use, like all environments of tinker-cookbook."""

    episode: TokenEpisode

    async def initial_observation(self) -> Any:
        """Reset the environment and return the first prompt."""
        step = await self.episode.begin()
        if step.stop_reason:
            return types.InitialObservationOverflow(0.0, {"stop/context_overflow": 1.0})
        return tinker.ModelInput.from_ints(step.prompt_ids), self.episode.stop_ids

    async def step(self, action: list[int], *, extra: types.ActionExtra | None = None) -> types.StepResult:
        """Act with the text of the sampled ids.

        Every limit except the context's is reported as `max_turns`.
        """
        step = await self.episode.answer(action)
        reason = step.stop_reason and _REASONS.get(step.stop_reason, "max_turns")
        metrics = {**step.metrics, **({f"stop/{reason}": 1.0} if reason else {})}
        prompt = tinker.ModelInput.from_ints(step.prompt_ids)
        return types.StepResult(step.reward, bool(reason), prompt, self.episode.stop_ids, metrics)


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


@dataclass
class GymGroup(types.EnvGroupBuilder):
    """Episodes with the same seed, so they start equal."""

    config: GymDatasetBuilder
    seed: int
    envs: list[GymEnv] = field(default_factory=list)

    async def make_envs(self) -> Sequence[types.Env]:
        """Return the group's episodes."""
        config = self.config
        renderer = renderer_of(get_tokenizer(config.model_name), context_length=config.context_length)
        for _ in range(config.group_size):
            make_env = partial(make, config.env_id, **config.env_kwargs)
            episode = TokenEpisode(make_env, renderer, seed=self.seed, max_turns=config.max_turns)
            self.envs.append(GymEnv(episode))
        return self.envs

    async def cleanup(self) -> None:
        """Close the environments of `make_envs`."""
        while self.envs:
            await self.envs.pop().episode.close()


@dataclass
class GymDataset(types.RLDataset):
    """Groups with consecutive seeds."""

    config: GymDatasetBuilder

    def get_batch(self, index: int) -> Sequence[GymGroup]:
        """Return the groups of one train step."""
        first = self.config.seed + index * self.config.batch_size
        return [GymGroup(self.config, seed) for seed in range(first, first + self.config.batch_size)]

    def __len__(self) -> int:
        return self.config.batches
