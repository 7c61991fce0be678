import pytest

from tinkergym.network.backoff import Backoff


def test_doubles_waits_up_to_a_bound_and_ends_with_patience():
    slept = []
    backoff = Backoff(patience_seconds=10.0, first_seconds=1.0, most_seconds=4.0, sleep=slept.append)
    assert list(backoff.waits()) == slept
    # Unshortened 1, 2, 4 and the 3 that are left of 10.
    assert len(slept) == 4
    for seconds, longest in zip(slept, (1.0, 2.0, 4.0, 3.0), strict=True):
        assert longest / 2 <= seconds <= longest


@pytest.mark.parametrize("patience", [0.0, -1.0])
def test_waits_not_at_all_without_patience(patience):
    assert list(Backoff(patience_seconds=patience).waits()) == []
