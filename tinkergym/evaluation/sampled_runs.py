"""Runs with several episodes per task, with a model or without, in any order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from tinkergym.evaluation.baselines import TextPolicy, play_episode
from tinkergym.evaluation.evaluate import EvaluablePolicy, PolicyEpisode, played, sampling_seed
from tinkergym.evaluation.records import EpisodeRecord
from tinkergym.rollout.host_pool import MakeEnv
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.jobs.parts import EnvironmentRef

_STREAM = 3
"""Last word of the entropy of sampling seeds; different in training and `evaluate`."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One episode that is to be played."""

    seed: int
    sample: int
    task_index: int | None = None

    @property
    def episode_id(self) -> str:
        """Its id within the evaluation."""
        return f"{self.seed}-{self.sample}"


def wanted_episodes(
    *,
    seed: int,
    tasks: Mapping[int, int | None],
    samples: int,
    done: Iterable[tuple[int, int]] = (),
) -> list[Wanted]:
    """List the unfinished episodes of a run: every task once, then every task again, ...

    So a run that is stopped early covers all tasks equally.

    Args:
        seed: The seed of task 0; a task's number is added.
        tasks: By their numbers, the index in a data-dependent environment; None draws a task by its seed.
        samples: Episodes per task.
        done: (seed, sample) of finished episodes.
    """
    there = set(done)
    return [
        Wanted(seed + number, sample, index)
        for sample in range(samples)
        for number, index in tasks.items()
        if (seed + number, sample) not in there
    ]


def play_with_text(
    policy: TextPolicy, env: gym.Env[Any, Any], name: str, wanted: Sequence[Wanted], *, most_turns: int
) -> Iterator[EpisodeRecord]:
    """Play episodes with a policy without a model, one after the other."""
    for item in wanted:
        trajectory = play_episode(
            env,
            policy,
            seed=item.seed,
            policy_seed=_seed_of(item),
            task_index=item.task_index,
            most_turns=most_turns,
        )
        yield EpisodeRecord(
            episode_id=item.episode_id,
            environment=name,
            seed=item.seed,
            sample=item.sample,
            trajectory=trajectory,
        )


def play_with_model(
    policy: EvaluablePolicy,
    reference: EnvironmentRef,
    make_env: MakeEnv | None,
    wanted: Sequence[Wanted],
    decoding: Decoding,
    *,
    max_concurrent: int = 64,
) -> Iterator[EpisodeRecord]:
    """Play episodes with a policy of the service, many at once; yields each as it ends.

    If `make_env` is None, the service plays them. The same seed and sample give the same sampling seed in
    every run.
    """
    by_id = {item.episode_id: item for item in wanted}
    episodes = {
        episode_id: PolicyEpisode(seed=item.seed, sampling_seed=_seed_of(item), task_index=item.task_index)
        for episode_id, item in by_id.items()
    }
    for line in played(policy, reference, make_env, episodes, decoding, max_concurrent=max_concurrent):
        episode_id, trajectory = line.episode_id, line.trajectory
        assert trajectory is not None
        item = by_id[episode_id]
        yield EpisodeRecord(
            episode_id=episode_id,
            environment=reference.id,
            seed=item.seed,
            sample=item.sample,
            trajectory=trajectory,
        )


def _seed_of(item: Wanted) -> int:
    return sampling_seed(item.seed, item.sample, _STREAM)
