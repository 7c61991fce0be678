import time

import pytest

from backend.gateway.fair_threads import TOO_LONG
from backend.store.service_parts import CLUSTER, NODES, pool_part
from tinkergym.errors import ServiceUnavailableError

pytestmark = pytest.mark.service


def error_of(response):
    error = response.json()["error"]
    assert set(error) == {"type", "message", "hint", "field", "code"}
    return error


def test_says_what_service_waits_for_and_since_when(gateway, client, start_pool):
    health = client.get("/v1/health").json()
    assert (health["status"], set(health["waiting_for"])) == ("degraded", {"scheduler", "pool:nano"})
    assert health["missing_since"].keys() == {"scheduler", "pool:nano"}
    assert max(health["missing_since"].values()) <= time.time()
    assert client.get("/v1/health").json() == health
    start_pool()
    service = gateway.store.service()
    service.touch_part("scheduler", now=time.time())
    ok = client.get("/v1/health").json()
    assert (ok["status"], ok["waiting_for"], ok["missing_since"]) == ("ok", [], {})
    service.silence_pools()
    service.touch_part("scheduler", now=time.time() - 16.0)
    again = client.get("/v1/health").json()
    assert set(again["waiting_for"]) == {"scheduler", "pool:nano"}
    assert again["missing_since"]["scheduler"] > health["missing_since"]["scheduler"]


def test_reports_dead_pool_missing_until_replaced(gateway, client, owner, start_pool):
    start_pool()
    service = gateway.store.service()
    service.touch_part("scheduler", now=time.time())
    for model in ("nano", "/home/ada/model"):
        service.touch_part(pool_part(model), now=time.time())
    # That of nano is there again. The name of a folder is the owner's business.
    assert client.get("/v1/health").json()["waiting_for"] == ["pool"]
    assert owner.get("/v1/health").json()["waiting_for"] == ["pool:/home/ada/model"]
    service.forget_part(pool_part("/home/ada/model"))
    assert client.get("/v1/health").json()["status"] == "ok"


class Overdue:
    """The threads of a health whose database hangs, after their time."""

    async def run(self, *_):
        raise ServiceUnavailableError("not within 10 s", code=TOO_LONG)


def test_names_what_hangs_instead_of_failing(gateway, client):
    state = gateway.app.state
    threads, state.health_threads = state.health_threads, Overdue()
    health = client.get("/v1/health").json()
    state.health_threads = threads
    assert (health["status"], health["waiting_for"]) == ("degraded", ["disk"])


def test_reports_silent_pool_as_missing_before_the_scheduler_sees_it(gateway, owner, start_pool):
    start_pool()
    service = gateway.store.service()
    service.touch_part("scheduler", now=time.time())
    service.register_pool("pool-2", "other", "http://127.0.0.1:1", "token", time.time() - 3600.0)
    assert owner.get("/v1/health").json()["waiting_for"] == ["pool:other"]


def test_tells_only_the_machines_owner_what_models_take(gateway, client, owner, start_pool):
    start_pool()
    service = gateway.store.service()
    assert owner.get("/v1/health").json()["memory"] == {}
    (pool,) = service.pools(time.time())
    service.record_pool_memory({pool.pool_id: 600_000_000})
    assert owner.get("/v1/health").json()["memory"] == {"nano": 600_000_000}
    with gateway.client(tenant="") as anonymous:
        assert [who.get("/v1/health").json()["memory"] for who in (client, anonymous)] == [{}, {}]


def test_shows_models_and_renderers_by_name(client):
    assert [model["name"] for model in client.get("/v1/models").json()["models"]] == ["nano"]
    assert client.get("/v1/renderer", params={"model": "nano"}).json()["context_length"] == 1024
    refused = client.get("/v1/renderer", params={"model": "gpt-9"})
    assert (refused.status_code, error_of(refused)["type"]) == (422, "UnknownModelError")
    assert error_of(client.get("/v1/renderer"))["field"] == "model"


def test_reports_pool_as_missing_that_cannot_be_sampled(gateway, client, start_pool):
    pool = start_pool()
    gateway.store.service().touch_part("scheduler", now=time.time())
    pool.proof = 500
    assert client.get("/v1/health").json()["waiting_for"] == ["pool:nano"]
    assert client.get("/v1/health?sample=false").json()["waiting_for"] == ["pool:nano"]


@pytest.mark.parametrize(("samples", "resting"), [(False, ["nano"]), (None, [])])
def test_says_which_models_rest_unsampled(gateway, client, start_pool, samples, resting):
    pool = start_pool()
    gateway.store.service().touch_part("scheduler", now=time.time())
    pool.samples = samples
    health = client.get("/v1/health").json()
    assert (health["status"], health["resting"]) == ("ok", resting)


def test_reports_pool_as_missing_at_which_nothing_listens(gateway, client):
    service = gateway.store.service()
    service.touch_part("scheduler", now=time.time())
    service.register_pool("pool-1", "nano", "http://127.0.0.1:1", "token", time.time())
    # Its heartbeats arrive: between the gateway and the pool the network is gone.
    assert client.get("/v1/health").json()["waiting_for"] == ["pool:nano"]


@pytest.mark.parametrize("part", [CLUSTER, NODES])
def test_names_what_the_scheduler_misses_below_all_pools(gateway, client, start_pool, part):
    start_pool()
    service = gateway.store.service()
    for name in ("scheduler", part):
        service.touch_part(name, now=time.time())
    assert client.get("/v1/health").json()["waiting_for"] == [part]
