"""A contextual bandit with words for arms."""

from tinkergym.registration import register as register_environment

__all__ = ["register"]


def register() -> None:
    """Register this pack's environment; tinkergym finds this by the entry-point group `tinkergym.envs`."""
    register_environment("bandit/Bandit-v0", "tinkergym_bandit.bandit:BanditEnv")


# So that `gymnasium.make` knows it after `import`, too.
register()
