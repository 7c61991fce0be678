from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from backend.fairness.fair_places import FairPlaces


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
