import os

from backend.compute import memory


def test_counts_a_containers_limit_if_it_is_smaller(tmp_path):
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = tmp_path / "memory.max"
    assert memory.machine_bytes(limit) == whole
    for text, expected in (("max", whole), ("1024\n", 1024), (str(10 * whole), whole)):
        limit.write_text(text)
        assert memory.machine_bytes(limit) == expected


def test_gives_memory_back_at_any_time():
    memory.give_memory_back()
    memory.give_memory_back()
