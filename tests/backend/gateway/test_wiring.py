from backend.gateway.wiring import Missing


def test_knows_since_when_each_part_has_been_missing():
    missing = Missing()
    assert missing.update(["pool"], now=10.0) == {"pool": 10.0}
    assert missing.update(["pool", "scheduler"], now=12.0) == {"pool": 10.0, "scheduler": 12.0}
    assert missing.update(["scheduler"], now=13.0) == {"scheduler": 12.0}
    # What came back and is missing again is missing since then.
    assert missing.update(["pool"], now=20.0) == {"pool": 20.0}
    assert missing.update([], now=21.0) == {}
