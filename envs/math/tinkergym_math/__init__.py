"""Arithmetic from a data set with train and test splits."""

import gymnasium as gym

__all__ = ["register"]


def register() -> None:
    """Register this pack's environment; called by tinkergym through the entry-point group `tinkergym.envs`."""
    gym.register("math/Arithmetic-v0", "tinkergym_math.arithmetic:ArithmeticEnv")
