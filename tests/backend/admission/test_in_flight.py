import pytest

from backend.admission.request_bounds import InFlight
from tinkergym.errors import TooManyRequestsError


def test_limits_what_a_tenant_has_in_flight_regardless_of_others():
    requests = InFlight(most=4)
    with requests.entered("ada", 3) as batch, requests.entered("bob", 4):
        with pytest.raises(TooManyRequestsError), requests.entered("ada", 2):
            pass
        with requests.entered("ada", 1):
            pass
        batch.answered(2)
        with requests.entered("ada", 3):
            pass


def test_takes_batch_of_any_size_when_nothing_is_in_flight():
    requests = InFlight(most=4)
    with requests.entered("ada", 9), pytest.raises(TooManyRequestsError), requests.entered("ada", 1):
        pass


def test_counts_out_what_broke_off():
    requests = InFlight(most=4)
    with pytest.raises(RuntimeError), requests.entered("ada", 4):
        raise RuntimeError
    with requests.entered("ada", 4) as batch:
        batch.answered(9)  # more than there were
    with requests.entered("ada", 4):
        pass
