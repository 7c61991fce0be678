from __future__ import annotations

from backend.scheduler.room import MemoryBudget, PoolMemory, make_room, too_many


def pool(pool_id, used_bytes=10, *, idle_since=None, preloaded=False):
    return PoolMemory(pool_id=pool_id, used_bytes=used_bytes, preloaded=preloaded, idle_since=idle_since)


def test_nothing_ends_while_there_is_room():
    assert make_room([pool("a", idle_since=1.0)], needed=10, budget=20) == []


def test_the_pools_that_were_idle_longest_end_and_no_more_than_are_needed():
    pools = [pool("young", idle_since=9.0), pool("old", idle_since=1.0), pool("older", idle_since=0.0)]
    assert make_room(pools, needed=10, budget=30) == ["older"]
    assert make_room(pools, needed=20, budget=30) == ["older", "old"]


def test_none_ends_in_vain_while_busy_ones_take_the_room():
    pools = [pool("busy", 25), pool("idle", idle_since=1.0)]
    assert make_room(pools, needed=10, budget=30) is None


def test_preloaded_pools_never_end():
    pools = [pool("preloaded", 25, idle_since=0.0, preloaded=True), pool("idle", idle_since=1.0)]
    assert make_room(pools, needed=5, budget=30) == ["idle"]
    assert too_many(pools, budget=5) == ["idle"]


def test_a_pool_for_which_there_is_never_room_starts_when_only_preloaded_ones_are_left():
    pools = [pool("preloaded", preloaded=True), pool("idle", idle_since=1.0)]
    assert make_room(pools, needed=1000, budget=30) == ["idle"]
    assert make_room([*pools, pool("busy")], needed=1000, budget=30) is None


def test_pools_that_have_grown_beyond_the_budget_lose_the_idle_ones_among_them():
    pools = [pool("busy", 25), pool("young", idle_since=9.0), pool("old", idle_since=1.0)]
    assert too_many(pools, budget=45) == []
    assert too_many(pools, budget=35) == ["old"]
    assert too_many(pools, budget=5) == ["old", "young"]


def test_a_pool_is_expected_to_take_its_weights_and_more_until_one_was_seen(tmp_path):
    budget = MemoryBudget(10, {"small": str(tmp_path / "missing"), "large": str(tmp_path)})
    for number in (1, 2):
        (tmp_path / f"model-{number}.safetensors").write_bytes(b"x" * 100)
    assert budget.expected("large") == budget.expected("small") + 200
    budget.saw("large", 5000)
    budget.saw("large", 9000)
    assert budget.expected("large") == 5000


def test_weights_that_went_away_stop_nothing_and_a_folder_may_be_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "model.safetensors").symlink_to(tmp_path / "nowhere")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.safetensors").write_bytes(b"x" * 100)
    budget = MemoryBudget(10, {})
    assert budget.expected(str(tmp_path / "gone")) == budget.expected("a/hub-id")
    assert budget.expected("~/mine") == budget.expected("a/hub-id") + 100
