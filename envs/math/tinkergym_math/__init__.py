"""Arithmetic from a data set with train and test splits."""

from tinkergym.registration import register as register_environment

__all__ = ["register"]


def register() -> None:
    """Register this pack's environments; tinkergym finds this by the entry-point group `tinkergym.envs`."""
    register_environment("math/Arithmetic-v0", "tinkergym_math.arithmetic:ArithmeticEnv")
    register_environment("math/ArithmeticWithPython-v0", "tinkergym_math.arithmetic_with_python:make")


# So that `gymnasium.make` knows it after `import`, too.
register()
