"""What an episode's answers are credited with: the environment's rewards, less penalties that a job asks for.

Pure. The trajectory itself keeps what the environment said; so do the step's statistics.
"""

from __future__ import annotations

from backend.learner.shaping import overlong_penalty
from tinkergym.loop.trajectory import Trajectory
from tinkergym.wire import JobSpec


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
