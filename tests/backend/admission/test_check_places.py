"""Who gets the places for job checks."""

import threading

import pytest

from backend.admission.check_places import CheckPlaces
from tinkergym.errors import ServiceUnavailableError

PATIENCE_SECONDS = 120.0


def test_gives_a_tenant_at_most_half_of_the_places():
    places, inside, done = CheckPlaces(4), threading.Semaphore(0), threading.Event()

    def hangs():
        with places.taken("ada", 1e6):
            inside.release()
            done.wait()

    hanging = [threading.Thread(target=hangs, daemon=True) for _ in range(6)]
    for one in hanging:
        one.start()
    for _ in range(2):
        assert inside.acquire(timeout=PATIENCE_SECONDS)
    with places.taken("bob", 0.0), places.taken("bob", 0.0):
        assert not inside.acquire(blocking=False)
    # Those that wait come in as others leave, not when their time is up.
    done.set()
    for one in hanging:
        one.join(PATIENCE_SECONDS)
    assert not any(one.is_alive() for one in hanging)


def test_rejects_a_check_that_gets_no_place_in_time():
    places = CheckPlaces(1)
    with places.taken("ada", 0.0), pytest.raises(ServiceUnavailableError), places.taken("bob", 0.0):
        pytest.fail("there was no place")
    with places.taken("eve", 0.0):
        pass
