import pytest
from tinkergym_math.baselines import POLICIES, accuracy


@pytest.mark.parametrize(
    ("policy", "expected"), [("random", 0.002), ("without carry", 0.448), ("perfect", 1.0)]
)
def test_scores_policies_on_test_split_as_the_page_says(policy, expected):
    assert accuracy(POLICIES[policy], "test") == pytest.approx(expected)
