"""Records of made-up episodes, for tests that process them."""

from __future__ import annotations

from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.ids import EpisodeId, JobRef
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


def stored_record(
    index: int,
    reward: float | None,
    *,
    step: int = 1,
    turns: int = 1,
    task_index: int | None = None,
    job_id: str = "job-1",
) -> bytes:
    """Return an episode as the service stores it; a reward of `None` means that its environment raised."""
    stop_reason = StopReason.ENVIRONMENT_ERROR if reward is None else StopReason.TERMINATED
    once = one_turn_episode(0.0, stop_reason, seed=index)
    record = once.turns[0]
    played = [
        record.model_copy(
            update={
                "observation": "question" if number == 0 else "go on",
                "action": f"answer {index}",
                "reward": (reward or 0.0) if number == turns - 1 else 0.0,
                "segment": number,
            }
        )
        for number in range(turns)
    ]
    trajectory = once.model_copy(
        update={"turns": played, "segments": once.segments * turns, "task_index": task_index}
    )
    result = EpisodeResult(
        episode_id=str(EpisodeId(JobRef(job_id), step, index)), lease_id="lease", trajectories=[trajectory]
    )
    return result.model_dump_json().encode()
