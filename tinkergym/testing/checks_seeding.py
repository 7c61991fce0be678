"""Checks of randomness: all of it comes from the seed, and episodes are independent."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium.utils import seeding

from tinkergym.testing.checks_subject import (
    MOST_STEPS,
    SEEDS,
    AnyEnv,
    CheckFailedError,
    CheckSkippedError,
    Subject,
    comparable,
    first_difference,
)

_MANY_SEEDS = range(32)
_DRAW_FROM_NP_RANDOM = "take all randomness from self.np_random, which reset has seeded"


def same_seed(subject: Subject) -> None:
    """The same seed gives the same episode, in a new environment and in one that has played before."""
    used = subject.make()
    for seed in SEEDS:
        fresh = subject.make()
        one, other = subject.episode(fresh, seed), subject.episode(used, seed)
        fresh.close()
        if one != other:
            raise CheckFailedError(
                f"seed {seed} gives two episodes that differ {first_difference(one, other)}",
                hint=f"{_DRAW_FROM_NP_RANDOM}, and start from scratch in reset",
            )
        # Also after an episode that was abandoned.
        used.reset(seed=seed + 1)
    used.close()


def different_seeds(subject: Subject) -> None:
    """Not all seeds give the same episode."""
    env = subject.make()
    try:
        if (env.metadata or {}).get("deterministic"):
            raise CheckSkippedError("metadata['deterministic'] says that the environment ignores the seed")
        first = subject.episode(env, 0, policy_seed=0)
        if any(subject.episode(env, seed, policy_seed=0) != first for seed in _MANY_SEEDS):
            return
        draws = _draws(env, _MANY_SEEDS[-1])
        gold = _gold(env, 0)
        if any(_gold(env, seed) != gold for seed in _MANY_SEEDS):
            return
    finally:
        env.close()
    if draws and gold is None:
        raise CheckSkippedError(
            "the environment draws from self.np_random, but the actions that were tried do not show what; "
            "define gold_action() to have it checked"
        )
    raise CheckFailedError(
        f"the seeds 0 to {_MANY_SEEDS[-1]} all give the same episode",
        hint="call super().reset(seed=seed) and draw from self.np_random; or, if nothing is drawn, "
        "declare metadata['deterministic'] = True",
    )


def _gold(env: AnyEnv, seed: int) -> Any:
    """Return the best first action, or None if the environment does not tell."""
    if not env.has_wrapper_attr("gold_action"):
        return None
    env.reset(seed=seed)
    return comparable(env.get_wrapper_attr("gold_action")())


def _draws(env: AnyEnv, seed: int) -> bool:
    """Return whether an episode has used its generator since it was reset with this seed."""
    inner = env.unwrapped
    if inner.np_random_seed != seed:  # `reset` has not passed it on
        return False
    fresh = seeding.np_random(seed)[0]
    return bool(inner.np_random.bit_generator.state != fresh.bit_generator.state)


def global_randomness(subject: Subject) -> None:
    """The generators of `random` and `numpy.random` are neither used nor changed."""
    with _global_generators_kept():
        # Things created lazily at first use (a cache, an import) may use randomness before.
        expected = [_whole_life(subject, seed) for seed in SEEDS]
        random.seed(1)
        np.random.seed(1)
        before = _global_state()
        changed = [_whole_life(subject, seed) for seed in SEEDS]
        if _global_state() != before:
            raise CheckFailedError(
                "an episode draws from, or seeds, the global generator of random or numpy.random",
                hint=f"{_DRAW_FROM_NP_RANDOM}; pass a generator to libraries that accept one",
            )
        if changed != expected:
            seed = next(s for s in SEEDS if changed[s] != expected[s])
            raise CheckFailedError(
                "the state of the global generators changes an episode "
                f"{first_difference(expected[seed], changed[seed])}",
                hint=_DRAW_FROM_NP_RANDOM,
            )


def game_global_randomness(subject: Subject) -> None:
    """The generators of `random` and `numpy.random` are neither used nor changed."""
    with _global_generators_kept():
        expected = _whole_game(subject)
        random.seed(1)
        np.random.seed(1)
        before = _global_state()
        changed = _whole_game(subject)
        if _global_state() != before or changed != expected:
            raise CheckFailedError(
                "a game uses or changes the global generator of random or numpy.random",
                hint="draw from a generator created in reset(seed)",
            )


def independent_instances(subject: Subject) -> None:
    """Creating, resetting, playing and closing one environment does not affect another."""
    expected = subject.episode(subject.make(), 0)
    env = subject.make()
    steps = subject.entries(env, 0)
    seen = [comparable(next(steps))]
    for number, entry in enumerate(steps):
        seen.append(comparable(entry))
        other = subject.make()
        other.reset(seed=number + 1)
        other.close()
    if seen != expected:
        raise CheckFailedError(
            f"another instance changes an episode {first_difference(expected, seen)}",
            hint="keep state in self, not in the class or the module",
        )


def interleaving(subject: Subject) -> None:
    """Episodes are the same when interleaved, and in another thread, as alone."""
    expected = {seed: subject.episode(subject.make(), seed) for seed in SEEDS}
    seen: dict[int, list[Any]] = {seed: [] for seed in SEEDS}
    playing = {seed: subject.entries(subject.make(), seed) for seed in SEEDS}
    for _ in range(MOST_STEPS + 1):
        for seed, steps in playing.items():
            entry = next(steps, None)
            if entry is not None:
                seen[seed].append(comparable(entry))
    in_thread: list[Any] = []
    thread = threading.Thread(target=lambda: in_thread.extend(subject.episode(subject.make(), 0)))
    thread.start()
    thread.join()
    for how, wanted, found in (
        *((f"of seed {seed}, interleaved with others,", expected[seed], seen[seed]) for seed in SEEDS),
        ("in another thread", expected[0], in_thread),
    ):
        if wanted != found:
            raise CheckFailedError(
                f"the episode {how} differs {first_difference(wanted, found)}",
                hint="keep state in self, not in the class, the module or a shared object",
            )


def _whole_life(subject: Subject, seed: int) -> list[Any]:
    env: AnyEnv = subject.make()
    try:
        return subject.episode(env, seed)
    finally:
        env.close()


def _whole_game(subject: Subject) -> list[Any]:
    game: Any = subject.make()
    game.reset(seed=0)
    for number, agent in enumerate(game.possible_agents):
        game.action_space(agent).seed(number)
    seen: list[Any] = []
    for agent in game.agent_iter(MOST_STEPS):
        observation, reward, terminated, truncated, info = game.last()
        seen.append(comparable((agent, observation, reward, terminated, truncated, info)))
        mask = info.get("action_mask") if isinstance(info, dict) else None
        game.step(None if terminated or truncated else game.action_space(agent).sample(mask))
    game.close()
    return seen


def _global_state() -> tuple[Any, Any]:
    return random.getstate(), comparable(np.random.get_state())


@contextmanager
def _global_generators_kept() -> Iterator[None]:
    ours, numpys = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(ours)
        np.random.set_state(numpys)
