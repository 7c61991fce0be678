from types import SimpleNamespace

import pytest

from backend.store.usage import QuotaRoom, counted, held_seconds, stop_request_of, used_up
from tinkergym.schema.jobs.parts import Budget


def row(**columns):
    return SimpleNamespace(
        **{
            "job_id": "job-1",
            "counted_at": 100.0,
            "lease_expires_at": 130.0,
            "used_seconds": 10.0,
            "used_tokens": 0,
            "budget": None,
            "cancel_requested": False,
            "pause_requested": None,
            **columns,
        }
    )


@pytest.mark.parametrize(
    ("now", "seconds"), [(100.0, 0.0), (110.0, 10.0), (130.0, 30.0), (500.0, 30.0), (90.0, 0.0)]
)
def test_counts_time_from_last_heartbeat_and_not_beyond_lease(now, seconds):
    assert held_seconds(row(), now) == seconds
    assert counted(row(), now) == {"used_seconds": 10.0 + seconds, "counted_at": now}


@pytest.mark.parametrize("columns", [{"counted_at": None}, {"lease_expires_at": None}])
def test_uses_nothing_for_a_job_without_a_place(columns):
    assert held_seconds(row(**columns), 110.0) == 0.0


def test_uses_up_a_budget_in_the_middle_of_a_lease():
    job = row(budget=Budget(hours=30 / 3600).model_dump_json())
    assert used_up(job, 119.0) == ""
    assert used_up(job, 120.0)
    assert used_up(row(), 10**9) == ""


def test_does_not_ask_cancelled_job_to_pause():
    assert stop_request_of(row(cancel_requested=True, pause_requested="wait"), 110.0).cancel
    asked = stop_request_of(row(pause_requested="wait"), 110.0)
    assert (asked.pause, asked.asked) == ("wait", True)


def test_pauses_job_unasked_whose_budget_is_used_up():
    request = stop_request_of(row(budget=Budget(tokens=5).model_dump_json(), used_tokens=5), 110.0)
    assert request.pause
    assert not request.asked
    assert stop_request_of(row(), 110.0).pause == ""


def taken(room, tenant_id, limit, size, times):
    return [room.take(tenant_id, limit, size) for _ in range(times)]


def test_has_no_room_without_a_listing():
    assert not QuotaRoom().take("ada", 1000, 1)


def test_allows_an_eighth_of_the_remaining_bytes_and_files():
    room = QuotaRoom()
    room.seen("ada", 1000, size_left=800, files_left=1000)
    assert taken(room, "ada", 1000, 40, 4) == [True, True, False, False]
    room.seen("ada", 1000, size_left=800, files_left=16)
    assert taken(room, "ada", 1000, 1, 4) == [True, True, False, False]


def test_keeps_room_per_tenant_and_limit():
    room = QuotaRoom()
    room.seen("ada", 1000, size_left=800, files_left=800)
    assert not room.take("bob", 1000, 1)
    assert not room.take("ada", 2000, 1)
