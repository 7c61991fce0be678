from __future__ import annotations

from backend.scheduler.room import MemoryBudget, PoolMemory, make_room, too_many


def pool(pool_id, used_bytes=10, *, idle_since=None, preloaded=False):
    return PoolMemory(pool_id=pool_id, used_bytes=used_bytes, preloaded=preloaded, idle_since=idle_since)


def test_ends_nothing_while_there_is_room():
    assert make_room([pool("a", idle_since=1.0)], needed=10, budget=20) == []


def test_ends_longest_idle_pools_and_no_more_than_needed():
    pools = [pool("young", idle_since=9.0), pool("old", idle_since=1.0), pool("older", idle_since=0.0)]
    assert make_room(pools, needed=10, budget=30) == ["older"]
    assert make_room(pools, needed=20, budget=30) == ["older", "old"]


def test_ends_none_in_vain_while_busy_ones_take_room():
    pools = [pool("busy", 25), pool("idle", idle_since=1.0)]
    assert make_room(pools, needed=10, budget=30) is None


def test_never_ends_preloaded_pools():
    pools = [pool("preloaded", 25, idle_since=0.0, preloaded=True), pool("idle", idle_since=1.0)]
    assert make_room(pools, needed=5, budget=30) == ["idle"]
    assert too_many(pools, budget=5) == ["idle"]


def test_starts_roomless_pool_when_only_preloaded_ones_are_left():
    pools = [pool("preloaded", preloaded=True), pool("idle", idle_since=1.0)]
    assert make_room(pools, needed=1000, budget=30) == ["idle"]
    assert make_room([*pools, pool("busy")], needed=1000, budget=30) is None


def test_evicts_idle_pools_among_those_grown_beyond_the_budget():
    pools = [pool("busy", 25), pool("young", idle_since=9.0), pool("old", idle_since=1.0)]
    assert too_many(pools, budget=45) == []
    assert too_many(pools, budget=35) == ["old"]
    assert too_many(pools, budget=5) == ["old", "young"]


def test_expects_pool_to_take_its_weights_and_more_until_seen(tmp_path):
    budget = MemoryBudget(10, {"small": str(tmp_path / "missing"), "large": str(tmp_path)})
    for number in (1, 2):
        (tmp_path / f"model-{number}.safetensors").write_bytes(b"x" * 100)
    assert budget.expected("large") == budget.expected("small") + 200
    budget.saw("large", 5000)
    budget.saw("large", 9000)
    assert budget.expected("large") == 5000


def test_survives_vanished_weights_and_supports_folder_in_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "model.safetensors").symlink_to(tmp_path / "nowhere")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.safetensors").write_bytes(b"x" * 100)
    budget = MemoryBudget(10, {})
    assert budget.expected(str(tmp_path / "gone")) == budget.expected("a/hub-id")
    assert budget.expected("~/mine") == budget.expected("a/hub-id") + 100
