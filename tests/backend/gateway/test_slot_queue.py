import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.fairness.fair_share import next_jobs
from backend.gateway.slot_queue import RecentQueue, SlotQueue
from backend.store.store import HeldJob, QueuedJob
from tinkergym.schema.events import JobState
from tinkergym.schema.queue import MOST_WAITING


def queue(waiting, held=(), *, most_of_one=None, slots=2):
    """Two pools of `m`, none of `n`; jobs are written as `tenant:model`, and held ones as `tenant`."""
    return SlotQueue(
        waiting=[
            QueuedJob(
                job_id=f"w{age}", reason=f"why {age}", created_at=float(age), tenant_id=who, model=model
            )
            for age, (who, model) in enumerate(one.split(":") for one in waiting)
        ],
        held=[
            HeldJob(job_id=f"h{number}", tenant_id=who, worker_id="a", state=JobState.RUNNING)
            for number, who in enumerate(held)
        ],
        pools={"a": "m", "b": "m"},
        slots_per_pool=slots,
        most_of_one=most_of_one,
    )


def places(view):
    return {one.job_id: one.position for one in view.waiting}


def test_counts_places_in_order_of_turns():
    found = queue(["ada:m", "ada:m", "bob:m", "bob:n"], held=["ada"])
    assert places(found.seen_by("op", is_owner=True, offered=())) == {"w2": 1, "w0": 2, "w1": 3, "w3": 1}


@given(
    st.lists(st.sampled_from(["a:m", "b:m", "c:m", "a:n"]), max_size=12),
    st.lists(st.sampled_from("abc"), max_size=5),
    st.integers(1, 12),
    st.none() | st.integers(1, 2),
)
def test_names_as_next_those_that_would_start(waiting, held, free, most):
    found = queue(waiting, held, most_of_one=most)
    running = {who: held.count(who) for who in held}
    own = None if most is None else {(who, "m"): 2 * most - held.count(who) for who in "abc"}
    starts = next_jobs(found.waiting, free_slots={"m": free}, running_by_tenant=running, tenant_slots=own)
    view = found.seen_by("op", is_owner=True, offered=())
    first = [one.job_id for one in view.waiting if one.model == "m" and one.position is not None][:free]
    assert first == [one.job_id for one in starts]


def test_gives_no_place_behind_a_tenants_last_slot():
    found = queue(["a:m", "a:m", "a:m", "b:m"], held=["a", "b"], most_of_one=1)
    seen = places(found.seen_by("op", is_owner=True, offered=()))
    assert seen == {"w0": 1, "w3": 2, "w1": None, "w2": None}


def test_cuts_each_models_line_by_itself():
    view = queue(["a:m"] * (MOST_WAITING + 3) + ["a:n"]).seen_by("a", is_owner=False, offered=())
    assert [one.left_out for one in view.models] == [3, 0]
    assert [one.model for one in view.waiting] == ["m"] * MOST_WAITING + ["n"]


def test_reads_queue_once_a_second_for_all():
    now, reads = [0.0], []
    recent = RecentQueue(lambda: now[0])

    def read():
        reads.append(now[0])
        return queue(["a:m"])

    for now[0] in (0.0, 0.9, 1.0, 1.9):
        assert recent.get(read).lines["m"]
    assert reads == [0.0, 1.0]


def test_gives_no_place_to_tenant_with_all_its_slots():
    found = queue(["ada:m", "bob:m"], held=["ada", "ada"], most_of_one=1)
    assert places(found.seen_by("ada", is_owner=False, offered=())) == {"w0": None}
    assert places(found.seen_by("bob", is_owner=False, offered=())) == {"w1": 1}


def test_shows_a_tenant_only_totals_of_others():
    found = queue(["ada:m", "bob:m", "carl:n"], held=["bob", "carl", "ada"])
    view = found.seen_by("ada", is_owner=False, offered=())
    assert [one.model for one in view.models] == ["m"]
    (slots,) = view.models
    assert (slots.pools, slots.slots, [one.job_id for one in slots.running]) == (2, 4, ["h2"])
    assert [(one.tenant_id, one.running, one.waiting) for one in slots.shares] == [("", 2, 1), ("ada", 1, 1)]
    assert "bob" not in view.model_dump_json()
    assert [one.model for one in found.seen_by("ada", is_owner=False, offered=["n"]).models] == ["m", "n"]


@pytest.mark.service
def test_shows_queue_over_http(gateway, client, owner, spec, start_pool):
    start_pool()
    held, waiting = (client.post("/v1/jobs", json=spec).json()["job_id"] for _ in range(2))
    gateway.store.service().acquire(held, "pool-1", 30, now=time.time())
    with gateway.client("bob") as bob:
        view = bob.get("/v1/queue").json()
    (slots,) = (one for one in view["models"] if one["model"] == "nano")
    assert (slots["running"], view["waiting"]) == ([], [])
    assert slots["shares"][0]["tenant_id"] == ""
    (mine,) = client.get("/v1/queue").json()["waiting"]
    assert (mine["job_id"], mine["reason"]) == (waiting, "")
    assert {held, waiting} <= {
        *(one["job_id"] for one in owner.get("/v1/queue").json()["waiting"]),
        *(job["job_id"] for one in owner.get("/v1/queue").json()["models"] for job in one["running"]),
    }
