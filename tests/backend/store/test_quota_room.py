"""How many files may be added between two listings."""

from backend.store.quota_room import QuotaRoom


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
