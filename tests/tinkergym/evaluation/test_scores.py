import math

import pytest

from tinkergym.evaluation.records import EpisodeRecord
from tinkergym.evaluation.scores import Scores
from tinkergym.trajectory.trajectory import StopReason, Trajectory, Turn


def record(seed, sample, reward):
    """An episode that earned `reward`; None for one whose environment failed."""
    turn = Turn(
        segment=0,
        start=0,
        end=0,
        policy_version=0,
        finish_reason="stop",
        observation="?",
        action="a",
        reward=reward or 0.0,
    )
    reason = StopReason.ENVIRONMENT_ERROR if reward is None else StopReason.TERMINATED
    trajectory = Trajectory(
        segments=[],
        turns=[turn],
        terminated=reward is not None,
        truncated=reward is None,
        stop_reason=reason,
        seed=seed,
    )
    return EpisodeRecord(
        episode_id=f"{seed}-{sample}", environment="x/Y-v0", seed=seed, sample=sample, trajectory=trajectory
    )


def scores(returns, **settings):
    return Scores(
        [record(seed, i, reward) for seed, row in enumerate(returns) for i, reward in enumerate(row)],
        **settings,
    )


def test_takes_figures_over_episodes_and_intervals_over_tasks():
    found = scores([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    assert found.mean == 0.5
    assert found.task_means == {0: 0.5, 1: 1.0, 2: 0.0}
    assert found.interval[0] < 0.5 < found.interval[1]
    assert found.success_rate == 0.5


def test_averages_pass_at_k_over_the_tasks():
    found = scores([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    assert found.pass_at(1).mean == pytest.approx((0.25 + 1 + 0) / 3)
    assert found.pass_at(2).mean == pytest.approx((0.5 + 1 + 0) / 3)
    assert found.pass_at(4).mean == pytest.approx(2 / 3)


def test_requires_success_of_all_k_episodes_for_pass_hat_k():
    found = scores([[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 1.0, None, None]])
    assert found.pass_hat(1).mean == pytest.approx(found.pass_at(1).mean)
    assert found.pass_hat(2).mean == pytest.approx((3 / 6 + 1 + 0) / 3)
    assert (found.pass_hat(4).mean, found.pass_hat(4).tasks) == (0.5, 2)
    assert found.pass_hat(5) is None
    assert found.to_json([2])["pass_hat"]["2"]["mean"] == found.pass_hat(2).mean


def test_lets_caller_say_what_a_success_is():
    assert scores([[0.4], [0.6]], success=0.5).success_rate == 0.5
    assert scores([[0.4], [0.6]]).success_rate == 0.0


def test_counts_failed_episodes_instead_of_returns_of_0():
    found = scores([[1.0, None], [1.0, 1.0], [None, None]])
    assert (found.failed, found.mean) == (3, 1.0)
    assert found.stop_reasons == {"terminated": 3, "environment_error": 3}
    assert (found.pass_at(1).tasks, found.pass_at(2).tasks, found.pass_at(3)) == (2, 1, None)


def test_summarizes_run_without_figures_when_everything_failed():
    summary = scores([[None]]).to_json([1])
    assert (summary["mean_return"], summary["pass_at"]["1"]) == (None, None)


def test_summarizes_infinite_interval_as_json_too():
    summary = scores([[1.0, 0.0]]).to_json([1, 2])
    assert summary["interval_95"] == [None, None]
    assert math.isfinite(summary["pass_at"]["2"]["mean"])


def test_gives_runs_without_any_success_honest_intervals():
    found = scores([[0.0] * 4] * 32)
    assert found.interval == (0.0, pytest.approx(0.115, abs=0.002))
    for one in (found.pass_at(4), found.pass_hat(4)):
        assert (one.mean, one.low) == (0.0, 0.0)
        assert one.high == pytest.approx(0.11, abs=0.01)
    solved = scores([[1.0] * 4] * 32)
    assert solved.interval[1] == solved.pass_hat(4).high == 1.0
    assert solved.interval[0] == pytest.approx(1 - found.interval[1])


def test_gives_one_task_no_interval_but_the_possible_range():
    found = scores([[1.0, 0.0]])
    assert found.interval == (-math.inf, math.inf)
    assert (found.pass_at(1).low, found.pass_at(1).high) == (0.0, 1.0)


def test_knows_no_interval_of_equal_unbounded_returns():
    assert scores([[7.0], [7.0], [7.0]]).to_json([1])["interval_95"] == [None, None]
