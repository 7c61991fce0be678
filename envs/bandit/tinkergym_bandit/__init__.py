"""A contextual bandit with words for arms."""

import gymnasium as gym

__all__ = ["register"]


def register() -> None:
    """Register this pack's environment; called by tinkergym through the entry-point group `tinkergym.envs`."""
    gym.register("bandit/Bandit-v0", "tinkergym_bandit.bandit:BanditEnv")
