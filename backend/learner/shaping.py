"""Reward shaping: penalties for a completion's length, and rewards summed over turns.

Pure functions of a trajectory's numbers; environments are not involved.
"""

from __future__ import annotations

from collections.abc import Sequence


def overlong_penalty(answer_tokens: int, *, most_tokens: int, buffer_tokens: int, penalty: float) -> float:
    """Return the penalty for a completion close to its length limit.

    0 up to `most_tokens - buffer_tokens`; from there it grows linearly to `penalty` at `most_tokens`.

    Args:
        answer_tokens: Sampled tokens of the completion.
        most_tokens: `sampling.max_turn_tokens`.
        buffer_tokens: Number of tokens over which the penalty grows; 0 means no penalty.
        penalty: The maximum, in units of reward.

    Returns:
        From 0 to `penalty`, to be subtracted.

    Source:
        DAPO's soft overlong punishment, arXiv:2503.14476, with a penalty of 1.
    """
    if buffer_tokens < 1:
        return 0.0
    over = answer_tokens - (most_tokens - buffer_tokens)
    return penalty * min(max(over, 0), buffer_tokens) / buffer_tokens


def returns_to_go(rewards: Sequence[float], *, discount: float) -> list[float]:
    """Return for each turn the return from it on: `R_k = r_k + discount * R_(k+1)`.

    Source:
        Sutton and Barto, "Reinforcement Learning", 2nd edition, equation 3.9.
    """
    earned, found = 0.0, []
    for reward in reversed(rewards):
        earned = reward + discount * earned
        found.append(earned)
    return found[::-1]
