import numpy as np
import pytest

from backend.jobs.token_credit import token_credits, turn_payments, value_metrics, whitened_credits
from tinkergym.schema.algorithms import PPO
from tinkergym.trajectory.trajectory import Segment, StopReason, Trajectory, Turn


def trajectory(*segments):
    """Segments are lists of answers' lengths, each behind a prompt of two tokens."""
    made, turns = [], []
    for number, answers in enumerate(segments):
        mask = []
        for tokens in answers:
            mask += [False, False] + [True] * tokens
            turns.append(
                Turn(
                    segment=number,
                    start=len(mask) - tokens,
                    end=len(mask),
                    policy_version=0,
                    finish_reason="stop",
                    observation="o",
                    action="a",
                    reward=0.0,
                )
            )
        made.append(
            Segment(
                token_ids=[1] * len(mask),
                loss_mask=mask,
                sampling_logprobs=[-1.0 if sampled else None for sampled in mask],
            )
        )
    return Trajectory(
        segments=made,
        turns=turns,
        terminated=True,
        truncated=False,
        stop_reason=StopReason.TERMINATED,
        seed=0,
    )


@pytest.mark.parametrize(
    ("segments", "rewards", "paid"),
    [
        ([[3]], [5.0], [0, 0, 5]),
        ([[2, 1, 2]], [1.0, 2.0, 3.0], [0, 1, 2, 0, 3]),
        ([[2, 1], [2]], [1.0, 2.0, 3.0], [0, 1, 2, 0, 3]),
        ([[2, 0, 1]], [1.0, 2.0, 3.0], [0, 3, 3]),  # the empty answer's reward goes to the one before
        ([[0, 2]], [1.0, 2.0], [1, 2]),
    ],
)
def test_a_turns_reward_is_paid_at_its_last_sampled_token(segments, rewards, paid):
    assert turn_payments(trajectory(*segments), rewards).tolist() == paid


def test_only_sampled_tokens_are_steps_also_across_turns_and_segments():
    credits_of = token_credits(
        PPO(gamma=0.5, gae_lambda=0.5),
        [trajectory([1], [1, 1])],
        [[1.0, 0.0, 3.0]],
        {(0, 0): np.float32([0.5]), (0, 1): np.float32([2.0, 4.0])},
        {},
    )
    # The golden values of three steps in a row, see test_gae.py: what stands between them takes no step.
    assert credits_of[0, 0].advantages == pytest.approx([1.4375])
    assert credits_of[0, 1].advantages == pytest.approx([-0.25, -1.0])
    assert credits_of[0, 1].value_targets == pytest.approx([1.75, 3.0])
    assert credits_of[0, 1].old_values.tolist() == [2.0, 4.0]


def test_a_penalty_is_paid_at_its_own_token():
    two = [trajectory([2]), trajectory([2])]
    values = {(0, 0): np.zeros(2, np.float32), (1, 0): np.zeros(2, np.float32)}
    found = token_credits(PPO(), two, [[1.0], [1.0]], values, {(1, 0): np.array([0.25, 0.5])})
    assert found[0, 0].advantages.tolist() == [1.0, 1.0]
    assert found[1, 0].advantages.tolist() == [0.25, 0.5]


def test_an_episode_without_values_has_no_credit():
    values = {(1, 0): np.zeros(2, np.float32)}
    assert list(token_credits(PPO(), [trajectory([2])] * 2, [[1.0], [1.0]], values, {})) == [(1, 0)]


def test_whitening_is_over_the_tokens_of_the_step_that_are_learned_from():
    values = {(0, 0): np.zeros(2, np.float32), (1, 0): np.zeros(1, np.float32)}
    given = token_credits(PPO(), [trajectory([1, 1]), trajectory([1])], [[4.0, 2.0], [9.0]], values, {})
    learned = {(0, 0): np.array([True, True]), (1, 0): np.array([False])}
    found = whitened_credits(given, learned)
    assert found[0, 0].advantages == pytest.approx(np.array([2.0, -2.0]) / np.sqrt(8), rel=1e-5)
    assert found[1, 0].advantages.tolist() == [0.0]
    assert found[1, 0].value_targets.tolist() == [9.0]  # what the head learns is not whitened


def test_metrics_say_how_good_the_values_were():
    values = {(0, 0): np.float32([1.0]), (1, 0): np.float32([3.0])}
    found = value_metrics(token_credits(PPO(), [trajectory([1])] * 2, [[2.0], [4.0]], values, {}))
    assert found == {"value_mean": 2.0, "explained_variance": 1.0}
    same = value_metrics(token_credits(PPO(), [trajectory([1])] * 2, [[2.0], [2.0]], values, {}))
    assert same == {"value_mean": 2.0}
    assert value_metrics({}) == whitened_credits({}, {}) == {}
