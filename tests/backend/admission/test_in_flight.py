import pytest

from backend.admission.request_bounds import InFlight
from tinkergym.errors import TooManyRequestsError


def test_a_tenant_has_so_many_in_flight_and_others_do_not_count():
    requests = InFlight(most=4)
    with requests.entered("ada", 3) as batch, requests.entered("bob", 4):
        with pytest.raises(TooManyRequestsError), requests.entered("ada", 2):
            pass
        with requests.entered("ada", 1):
            pass
        batch.answered(2)
        with requests.entered("ada", 3):
            pass


def test_who_has_nothing_in_flight_may_send_a_batch_of_any_size():
    requests = InFlight(most=4)
    with requests.entered("ada", 9), pytest.raises(TooManyRequestsError), requests.entered("ada", 1):
        pass


def test_what_broke_off_is_counted_out():
    requests = InFlight(most=4)
    with pytest.raises(RuntimeError), requests.entered("ada", 4):
        raise RuntimeError
    with requests.entered("ada", 4) as batch:
        batch.answered(9)  # more than there were
    with requests.entered("ada", 4):
        pass
