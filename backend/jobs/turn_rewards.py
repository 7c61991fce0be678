"""The rewards credited to an episode's completions: the environment's rewards, minus the job's penalties.

Pure. The trajectory itself, and the step's statistics, keep the environment's rewards.
"""

from __future__ import annotations

from collections.abc import Sequence

from backend.episodes.played import Played, trained_seats
from tinkergym.errors import InvalidRewardError
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.trajectory.trajectory import Trajectory

LARGEST_RETURN = 1e15
"""Of an episode. The learner squares gradients in float32, whose maximum is 3e38."""


def refuse_large_rewards(played: Played) -> None:
    """Refuse finite rewards that are too large to compute with.

    Raises:
        InvalidRewardError: The absolute rewards of an episode add up to more than `LARGEST_RETURN`.
    """
    for request, trajectory in trained_seats(played):
        rewards = [turn.reward for turn in trajectory.turns]
        if sum(map(abs, rewards)) <= LARGEST_RETURN:
            continue
        worst = max(range(len(rewards)), key=lambda turn: abs(rewards[turn]))
        raise InvalidRewardError(
            f"{request.environment.id} paid a reward of {rewards[worst]:.3g} in step {worst + 1} of "
            f"the episode {request.episode_id} (seed {request.seed}), which is too large to train on",
            hint="scale the environment's rewards, preferably to about 1; those of an episode may add up to "
            f"{LARGEST_RETURN:g}",
            field="environment",
        )


def counts(spec: PlayedSpec, trajectory: Trajectory) -> bool:
    """Whether an episode counts in a baseline, and is trained on if it has tokens."""
    # A failure before the first completion has nothing to train on, and its return would be a made-up 0.
    kept = spec.on_failure == "keep" and trajectory.failed and trajectory.sampled_tokens > 0
    return trajectory.completed or kept


def compared_return(trajectory: Trajectory, rewards: Sequence[float]) -> float:
    """Return the return by which an episode is compared with others.

    Args:
        trajectory: The episode.
        rewards: Those of its turns. An agent that never acted has none, but its game was won or lost.
    """
    return sum(rewards) if trajectory.turns else trajectory.early_reward


def shaped_rewards(spec: RLSpec, trajectory: Trajectory) -> list[float]:
    """Return each turn's reward, minus the penalty for a completion near its limit."""
    algorithm = spec.algorithm
    if not algorithm.overlong_tokens:
        return [turn.reward for turn in trajectory.turns]
    return [
        turn.reward
        - overlong_penalty(
            turn.end - turn.start,
            most_tokens=spec.sampling.max_turn_tokens,
            buffer_tokens=algorithm.overlong_tokens,
            penalty=algorithm.overlong_penalty,
        )
        for turn in trajectory.turns
    ]


def overlong_penalty(
    completion_tokens: int, *, most_tokens: int, buffer_tokens: int, penalty: float
) -> float:
    """Return the penalty for a completion close to its length limit.

    0 up to `most_tokens - buffer_tokens`; from there it grows linearly to `penalty` at `most_tokens`.

    Args:
        completion_tokens: Sampled tokens of the completion.
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
    over = completion_tokens - (most_tokens - buffer_tokens)
    return penalty * min(max(over, 0), buffer_tokens) / buffer_tokens
