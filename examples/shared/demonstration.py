"""Demonstrations: episodes of a scripted player as conversations, to imitate with SFT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym

from tinkergym.rollout.environment_host import system_prompt_of


def demonstration(
    env: gym.Env[Any, Any],
    act: Callable[[str], str],
    *,
    seed: int,
    begin: Callable[[str], None] | None = None,
) -> dict[str, list[dict[str, str]]]:
    """Play an episode of an environment in text and return it as a row of messages.

    The row begins with the environment's system prompt, if it has one, as in training.

    Args:
        env: The environment; it stays open.
        act: Returns the action for an observation.
        seed: The episode's seed.
        begin: Called with the first observation, for players that keep a state.

    Example:
        >>> gold = env.get_wrapper_attr("gold_action")
        >>> rows = [demonstration(env, lambda seen: gold(), seed=seed) for seed in range(64)]
        >>> client.sft(tg.tasks.SequenceTasks(rows))
    """
    observation, _ = env.reset(seed=seed)
    if begin is not None:
        begin(observation)
    prompt = system_prompt_of(env)
    messages = [{"role": "system", "content": prompt}] if prompt else []
    over = False
    while not over:
        action = act(observation)
        messages += [{"role": "user", "content": observation}, {"role": "assistant", "content": action}]
        observation, _, terminated, truncated, _ = env.step(action)
        over = terminated or truncated
    return {"messages": messages}
