from __future__ import annotations

from collections import Counter
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.fairness.fair_places import FairPlaces, Hold


def test_leaves_places_of_one_tenant_for_the_next():
    queue = FairPlaces(16)
    for number in range(100):
        queue.add(number, "flood")
    assert queue.admit() == list(range(14))
    queue.add(100, "small")
    assert queue.admit() == [100]
    queue.remove(0)
    assert queue.admit() == [14]


def test_rotates_places_between_waiting_tenants():
    queue = FairPlaces(8)
    for number in range(100):
        queue.add(number, "flood")
    queue.admit()
    for number in range(100, 120):
        queue.add(number, "other")
    for number in range(7):
        queue.admit()
        queue.remove(number)
    inside = Counter("other" if number >= 100 else "flood" for number in range(120) if queue.inside(number))
    queue.admit()
    inside = Counter("other" if number >= 100 else "flood" for number in range(120) if queue.inside(number))
    assert inside == {"flood": 4, "other": 4}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60), st.integers(1, 20))
def test_loses_no_request_and_leaves_no_place_empty(steps, places):
    queue, admitted, waiting = FairPlaces(places), [], {}
    for number, (owner, remove) in enumerate(steps):
        queue.add(number, owner)
        waiting[number] = owner
        if remove:
            queue.remove(number // 2)
            waiting.pop(number // 2, None)
        new = queue.admit()
        admitted += new
        for each in new:
            del waiting[each]
        inside = [each for each in range(number + 1) if queue.inside(each)]
        assert len(inside) <= places
        held = Counter(steps[each][0] for each in inside)
        if len(inside) < places:
            assert all(held[each] >= queue.most_of_one for each in waiting.values())
    assert len(admitted) == len(set(admitted))


def test_limits_what_one_owner_takes_regardless_of_others():
    places = FairPlaces(inf, most_of_one=4)
    with Hold(places, "ada") as batch, Hold(places, "bob") as other:
        assert batch.take(3) and other.take(4)
        assert not Hold(places, "ada").take(2)
        with Hold(places, "ada") as more:
            assert more.take(1)
        batch.give(2)
        assert Hold(places, "ada").take(3)


def test_takes_any_number_for_an_owner_that_has_none():
    places = FairPlaces(inf, most_of_one=4)
    assert places.take("ada", 9)
    assert not places.take("ada", 1)


def test_takes_no_more_than_there_are_in_all():
    places = FairPlaces(10, most_of_one=8)
    assert places.take("ada", 7)
    assert not places.take("bob", 4)
    assert places.take("bob", 3)


def test_gives_back_what_is_left_when_a_block_breaks_off():
    places = FairPlaces(inf, most_of_one=4)
    with pytest.raises(RuntimeError), Hold(places, "ada") as batch:
        assert batch.take(4)
        raise RuntimeError
    with Hold(places, "ada") as batch:
        assert batch.take(4)
        batch.give(9)  # more than there were
    assert places.held("ada") == 0


def test_counts_an_overdue_place_for_its_owner_only():
    places = FairPlaces(1, most_of_one=1)
    for number, owner in enumerate(("ada", "ada", "bob")):
        places.add(number, owner)
    assert places.admit() == [0]
    places.outstay(0)
    assert places.admit() == [2]
    places.remove(0)
    assert places.admit() == []
    places.remove(2)
    assert places.admit() == [1]
