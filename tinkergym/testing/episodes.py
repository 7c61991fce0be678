"""Records of made-up episodes, for tests of what is done with them."""

from __future__ import annotations

from tinkergym.trajectory.trajectory import ONLY_AGENT, Segment, StopReason, Trajectory, Turn


def one_turn_episode(
    reward: float = 0.0,
    stop_reason: StopReason = StopReason.TERMINATED,
    *,
    error: str = "",
    seed: int = 0,
    agent: str = ONLY_AGENT,
    **metrics: float,
) -> Trajectory:
    """Return an episode of one turn: a prompt of one token, an answer of one token, and this reward."""
    segment = Segment(token_ids=[1, 2], loss_mask=[False, True], sampling_logprobs=[None, -0.5])
    turn = Turn(
        segment=0,
        start=1,
        end=2,
        policy_version=0,
        finish_reason="stop",
        observation="go",
        action="gone",
        reward=reward,
        metrics=metrics,
    )
    return Trajectory(
        agent=agent,
        segments=[segment],
        turns=[turn],
        terminated=stop_reason is StopReason.TERMINATED,
        truncated=False,
        stop_reason=stop_reason,
        error=error,
        seed=seed,
    )
