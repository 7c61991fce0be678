"""Outcomes of episodes with given returns."""

from tinkergym.testing.made_up_episodes import one_turn_episode
from tinkergym.trajectory.outcomes import Outcome, StepOutcomes


def outcomes(*groups, turns=None):
    """One list of returns per group; None is an episode that failed."""
    return [
        Outcome(
            trajectory=one_turn_episode(earned or 0.0),
            rewards=list((turns or {}).get(earned, [earned or 0.0])),
            earned=earned or 0.0,
            counts=earned is not None,
            group=number,
        )
        for number, group in enumerate(groups)
        for earned in group
    ]


def credits_of(algorithm, *groups, **settings):
    return algorithm.credits(StepOutcomes(outcomes(*groups), **settings)).of
