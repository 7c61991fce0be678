import numpy as np
import pytest

from backend.learner.aggregation import token_weights
from backend.learner.sequences import BatchTotals, TrainSequence
from tinkergym.errors import InvalidRequestError

COUNTS = np.array([1, 0, 3])
TOTALS = BatchTotals(tokens=4, sequences=2)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token", [1 / 4, 1 / 4, 1 / 4, 1 / 4]),
        ("sequence", [1 / 2, 1 / 6, 1 / 6, 1 / 6]),
        ("constant", [1 / 20, 1 / 20, 1 / 20, 1 / 20]),
    ],
)
def test_matches_golden_values(aggregation, expected):
    weights = token_weights(COUNTS, aggregation, totals=TOTALS, constant_tokens=10)
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_weighs_parts_of_a_batch_as_in_the_whole(aggregation):
    whole = token_weights(COUNTS, aggregation, totals=TOTALS, constant_tokens=10)
    parts = [
        token_weights(COUNTS[i : i + 1], aggregation, totals=TOTALS, constant_tokens=10) for i in range(3)
    ]
    assert np.concatenate(parts).tolist() == whole.tolist()


def test_counts_sequence_without_a_sampled_token_in_no_mean():
    sequences = [
        TrainSequence(
            token_ids=[1] * 4,
            loss_mask=[False, *mask],
            sampling_logprobs=[None, *[-1.0 if m else None for m in mask]],
        )
        for mask in ([True, False, False], [False] * 3, [True] * 3)
    ]
    assert BatchTotals.of(sequences) == TOTALS
    assert BatchTotals.of([sequences[1]]) == BatchTotals(tokens=0, sequences=0)


def test_rejects_constant_of_zero():
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "constant_tokens"):
        token_weights(COUNTS, "constant", totals=TOTALS, constant_tokens=0)
