from tinkergym.basics.bounded_dict import BoundedDict


def test_drops_entries_used_longest_ago():
    dropped = []
    held = BoundedDict(2, dropped=lambda key, value: dropped.append((key, value)))
    held["a"], held["b"] = 1, 2
    assert held["a"] == 1  # reading is a use; `in` is none
    assert "b" in held
    held["c"] = 3
    assert (dict(held), dropped) == ({"a": 1, "c": 3}, [("b", 2)])
    held["a"] = 4
    held["d"] = 5
    assert list(held) == ["a", "d"]


def test_counts_sizes_of_what_is_left():
    held = BoundedDict(10, size=len)
    held["a"], held["b"] = b"1234", b"1234"
    held["a"] = b"12"
    del held["b"]
    held["c"] = b"12345678"
    assert list(held) == ["a", "c"]
    held.clear()
    held["d"], held["e"] = b"12345", b"12345"
    assert list(held) == ["d", "e"]


def test_keeps_a_newest_entry_that_is_too_large():
    held = BoundedDict(3, size=len)
    held["a"], held["b"] = b"1", b"12345"
    assert dict(held) == {"b": b"12345"}
    assert held.get("a") is None
