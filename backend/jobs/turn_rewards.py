"""What an episode's answers are credited with: the environment's rewards, less penalties that a job asks for.

Pure. The trajectory itself keeps what the environment said; so do the step's statistics.
"""

from __future__ import annotations

from backend.episodes.played import Played, trained_seats
from backend.learner.shaping import overlong_penalty
from tinkergym.errors import InvalidRewardError
from tinkergym.schema.job_spec import JobSpec
from tinkergym.trajectory.trajectory import Trajectory

LARGEST_RETURN = 1e15
"""Of an episode. The learner squares gradients in float32, which ends at 3e38."""


def refuse_large_rewards(spec: JobSpec, played: Played) -> None:
    """Refuse rewards that are finite and yet cannot be computed with.

    Raises:
        InvalidRewardError: The sizes of an episode's rewards add up to more than `LARGEST_RETURN`.
    """
    for request, trajectory in trained_seats(played):
        rewards = [turn.reward for turn in trajectory.turns]
        if sum(map(abs, rewards)) <= LARGEST_RETURN:
            continue
        worst = max(range(len(rewards)), key=lambda turn: abs(rewards[turn]))
        raise InvalidRewardError(
            f"{request.environment.id} paid a reward of {rewards[worst]:.3g} in step {worst + 1} of "
            f"the episode {request.episode_id} (seed {request.seed}), which is too large to learn from",
            hint="scale the environment's rewards, best to sizes of about 1; an episode's may add up to "
            f"{LARGEST_RETURN:g}",
            field="environment",
        )


def counts(spec: JobSpec, trajectory: Trajectory) -> bool:
    """Whether an episode is learned from and enters a baseline."""
    # A failure before the first answer has nothing to learn from, and its return would be a made-up 0.
    kept = spec.on_failure == "keep" and trajectory.failed and trajectory.sampled_tokens > 0
    return trajectory.completed or kept


def shaped_rewards(spec: JobSpec, trajectory: Trajectory) -> list[float]:
    """Return each turn's reward, less the penalty for an answer that came near its limit."""
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
