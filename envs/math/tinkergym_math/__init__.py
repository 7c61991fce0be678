"""Arithmetic from a data set with train and test splits."""

from tinkergym.registration import register as register_environment

__all__ = ["register"]


def register() -> None:
    """Register this pack's environment; tinkergym finds this by the entry-point group `tinkergym.envs`."""
    register_environment("math/Arithmetic-v0", "tinkergym_math.arithmetic:ArithmeticEnv")


# So that `gymnasium.make` knows it after `import`, too.
register()
