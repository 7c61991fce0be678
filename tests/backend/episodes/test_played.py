from backend.episodes.played import is_lost
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.trajectory.trajectory import Segment, StopReason, Trajectory, Turn


def trajectory(agent, reason, turns=1):
    tokens = {"token_ids": [1, 2], "loss_mask": [False, True], "sampling_logprobs": [None, -0.5]}
    turn = Turn(
        segment=0,
        start=1,
        end=2,
        policy_version=0,
        finish_reason="stop",
        observation="",
        action="",
        reward=0.0,
    )
    return Trajectory(
        agent=agent,
        segments=[Segment(**tokens)] if turns else [],
        turns=[turn] * turns,
        terminated=reason is StopReason.TERMINATED,
        truncated=False,
        stop_reason=reason,
        seed=0,
    )


def result(*trajectories):
    return EpisodeResult(episode_id="e", lease_id="l", trajectories=list(trajectories))


def test_loses_an_episode_if_any_seat_failed():
    ended, failed = StopReason.TERMINATED, StopReason.ENVIRONMENT_ERROR
    assert not is_lost(result(trajectory("x", ended), trajectory("o", ended)))
    assert not is_lost(result(trajectory("x", ended), trajectory("o", ended, turns=0)))
    assert is_lost(result(trajectory("x", ended), trajectory("o", failed)))
    assert not is_lost(result(trajectory("x", ended, turns=0)))
    assert is_lost(result(trajectory("x", StopReason.CONTEXT_LIMIT, turns=0)))
