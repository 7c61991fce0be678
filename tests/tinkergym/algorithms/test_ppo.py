import numpy as np
import pytest

from tinkergym.algorithms.ppo import PPO, turn_payments
from tinkergym.trajectory.outcomes import Outcome, StepOutcomes
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


def outcome(segments, rewards, *, trained=True, **settings):
    played = trajectory(*segments)
    masks = [np.array(segment.loss_mask) & trained for segment in played.segments]
    return Outcome(trajectory=played, rewards=rewards, earned=sum(rewards), trained=masks, **settings)


def credited(algorithm, outcomes, values):
    floats = [{k: np.float32(own) for k, own in seat.items()} for seat in values]
    found = algorithm.credits(StepOutcomes(outcomes, lambda: floats))
    return found.of, found.metrics


PLAIN = PPO(whiten_advantages=False)


@pytest.mark.parametrize(
    ("segments", "rewards", "paid"),
    [
        ([[3]], [5.0], [0, 0, 5]),
        ([[2, 1, 2]], [1.0, 2.0, 3.0], [0, 1, 2, 0, 3]),
        ([[2, 1], [2]], [1.0, 2.0, 3.0], [0, 1, 2, 0, 3]),
        ([[2, 0, 1]], [1.0, 2.0, 3.0], [0, 3, 3]),  # the empty completion's reward goes to the one before
        ([[0, 2]], [1.0, 2.0], [1, 2]),
    ],
)
def test_pays_a_turns_reward_at_its_last_token(segments, rewards, paid):
    assert turn_payments(outcome(segments, rewards)).tolist() == paid


def test_takes_sampled_tokens_as_steps_across_turns_and_segments():
    algorithm = PPO(gamma=0.5, gae_lambda=0.5, whiten_advantages=False)
    (found,), _ = credited(algorithm, [outcome([[1], [1, 1]], [1.0, 0.0, 3.0])], [{0: [0.5], 1: [2.0, 4.0]}])
    # Golden values of three steps in a row: what stands between them takes no step.
    assert found[0].advantages == pytest.approx([1.4375])
    assert found[1].advantages == pytest.approx([-0.25, -1.0])
    assert found[1].value_targets == pytest.approx([1.75, 3.0])
    assert found[1].old_values.tolist() == [2.0, 4.0]


def test_charges_a_penalty_at_its_own_token():
    charged = outcome([[2]], [1.0], token_costs={0: np.array([0.25, 0.5])})
    (first, second), _ = credited(PLAIN, [outcome([[2]], [1.0]), charged], [{0: [0, 0]}, {0: [0, 0]}])
    assert first[0].advantages.tolist() == [1.0, 1.0]
    assert second[0].advantages.tolist() == [0.25, 0.5]


def test_credits_no_episode_without_values():
    found, _ = credited(PLAIN, [outcome([[2]], [1.0])] * 2, [{}, {0: [0, 0]}])
    assert [credit is None for credit in found] == [True, False]


def test_whitens_over_the_trained_tokens_of_a_step():
    outcomes = [outcome([[1, 1]], [4.0, 2.0]), outcome([[1]], [9.0], trained=False)]
    (first, second), _ = credited(PPO(), outcomes, [{0: [0, 0]}, {0: [0]}])
    assert first[0].advantages == pytest.approx(np.array([2.0, -2.0]) / np.sqrt(8), rel=1e-5)
    assert second[0].advantages.tolist() == [0.0]
    assert second[0].value_targets.tolist() == [9.0]  # what the head learns is not whitened


@pytest.mark.parametrize("algorithm", [PLAIN, PPO()])
def test_reports_how_good_the_values_were(algorithm):
    values = [{0: [1.0]}, {0: [3.0]}]
    good = [outcome([[1]], [2.0]), outcome([[1]], [4.0])]
    assert credited(algorithm, good, values)[1] == {"value_mean": 2.0, "explained_variance": 1.0}
    assert credited(algorithm, [outcome([[1]], [2.0])] * 2, values)[1] == {"value_mean": 2.0}
    assert credited(algorithm, [], []) == ([], {})
