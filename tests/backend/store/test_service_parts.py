from tinkergym.schema.events import ErrorView


def test_finds_pools_while_they_show_life(store):
    service = store.service()
    service.register_pool("p1", "nano", "unix:///run/p1.sock", "t1", now=100)
    service.register_pool("p2", "tiny", "http://127.0.0.1:8000", "t2", now=110)
    assert [pool.pool_id for pool in service.pools(now=120)] == ["p2", "p1"]
    assert [pool.pool_id for pool in service.pools(now=135)] == ["p2"]
    assert service.touch_pool("p1", now=134)
    assert [(pool.pool_id, pool.token) for pool in service.pools(now=135)] == [("p1", "t1"), ("p2", "t2")]
    service.remove_pool("p1")
    assert not service.touch_pool("p1", now=135)
    assert [pool.model for pool in service.pools(now=135)] == ["tiny"]


def test_knows_what_pools_take_and_leaves_out_vanished_ones(store):
    service = store.service()
    service.register_pool("p1", "nano", "unix:///run/p1.sock", "t1", now=100)
    service.record_pool_memory({"p1": 600, "gone": 700})
    assert [(pool.pool_id, pool.memory_bytes) for pool in service.pools(now=100)] == [("p1", 600)]


def test_replaces_older_self_of_re_registered_pool(store):
    service = store.service()
    service.register_pool("p1", "nano", "unix:///old", "t1", now=100)
    service.register_pool("p1", "nano", "unix:///new", "t2", now=101)
    (pool,) = service.pools(now=101)
    assert (pool.url, pool.token) == ("unix:///new", "t2")


def test_expires_requests_for_pools(store):
    service = store.service()
    service.want_pool("nano", now=100)
    service.want_pool("tiny", now=130)
    assert service.wanted_pools(now=150) == ["tiny", "nano"]
    assert service.wanted_pools(now=170) == ["tiny"]
    service.want_pool("nano", now=180)
    assert service.wanted_pools(now=185) == ["nano", "tiny"]


def test_ages_a_part_by_its_last_sign_of_life(store):
    service = store.service()
    assert service.parts(now=100) == {}
    service.touch_part("scheduler", now=100)
    service.touch_part("scheduler", now=104)
    assert service.parts(now=105) == {"scheduler": 1}
    service.forget_part("scheduler")
    assert service.parts(now=105) == {}


def test_remembers_why_a_pool_does_not_start_until_it_does(store):
    service = store.service()
    for number, model in enumerate(["nano", "tiny", "nano"]):
        error = ErrorView(type="ConfigError", message=f"reason {number}", hint="", field="device")
        service.note_refusal(model, error, now=100 + number)
    found = service.refusals()
    assert {model: refused.error.message for model, refused in found.items()} == {
        "nano": "reason 2",
        "tiny": "reason 1",
    }
    assert found["nano"].refused_at == 102
    service.forget_refusal("nano")
    assert list(service.refusals()) == ["tiny"]
    service.forget_refusals()
    assert service.refusals() == {}
