"""Models that a pool serves next to its own: loaded once, gone with the last job that needs them."""

from __future__ import annotations

import pytest

from backend.workers.guest_models import GuestModels, ServedModel
from tinkergym.errors import UnknownModelError


class Part:
    """An engine, a learner or a directory, as far as it matters here."""

    def __init__(self):
        self.closed = False
        self.trained = {}

    def close(self):
        self.closed = True

    def trained_by(self, policy):
        return self.trained.get(policy)


@pytest.fixture
def loaded():
    return []


@pytest.fixture
def guests(loaded):
    def load(model):
        if model == "broken":
            raise UnknownModelError("no such model")
        loaded.append(ServedModel(model=model, engine=Part(), learner=Part(), directory=Part(), early=Part()))
        return loaded[-1]

    return GuestModels(load)


def test_shares_guest_between_two_jobs_until_the_last_ends(guests, loaded):
    assert guests.take(["b"], "job-1") == guests.take(["b"], "job-2") == {"b": loaded[0]}
    guests.give_back("job-1")
    assert guests.has("b")
    guests.give_back("job-2")
    assert not guests.has("b")
    assert (len(loaded), loaded[0].engine.closed, loaded[0].learner.closed) == (1, True, True)


def test_holds_no_guest_when_the_second_cannot_be_loaded(guests, loaded):
    with pytest.raises(UnknownModelError):
        guests.take(["b", "broken"], "job-1")
    assert not guests.has("b")
    assert loaded[0].engine.closed


def test_samples_policy_of_any_version_by_guest_it_rests_on(guests, loaded):
    guests.take(["b"], "job-1")
    loaded[0].directory.trained["job-1/o"] = "job-1"
    assert all(guests.of_policy(name) is loaded[0] for name in ("b", "job-1/o", "job-1/o@3"))
    assert guests.of_policy("job-1/x") is guests.of_policy("nano") is None
