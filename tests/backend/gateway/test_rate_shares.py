"""How much two gateways on one database let pass of a key with limits."""

import asyncio
import json
import math
import time

import pytest

from backend.gateway.rate_shares import RateShares
from backend.store.store import Store
from tinkergym.errors import TooManyRequestsError


class Service:
    """A database, a clock for all, and two gateways."""

    def __init__(self, store, **limits):
        key = store.keys.create("ada", "limited", **limits)
        self.rate = store.keys.rights_of(key).rate
        self.now, self.asked = 1000.0, 0
        store.keys.rates._clock = lambda: self.now
        self._count = store.keys.rates.take
        self.begun, self.until = asyncio.Event(), None
        self.gateways = [RateShares(self._take, lambda: self.now) for _ in range(2)]

    async def _take(self, rate, **used):
        self.asked += 1
        counted = self._count(rate, **used)
        if self.until is not None:
            self.begun.set()
            await self.until.wait()
        return counted

    async def passes(self, gateway=0, tokens=0):
        """Return 0 if a request passes, else the seconds after which it is to be repeated."""
        try:
            await self.gateways[gateway].admit(self.rate, tokens)
        except TooManyRequestsError as refused:
            return refused.retry_after_seconds
        return 0.0

    async def counted(self, *answers, gateway=0, most=0):
        async def lines():
            yield b"".join(json.dumps({"request_id": "r", **one}).encode() + b"\n" for one in answers)

        with self.gateways[gateway].reserved(self.rate, most) as reservation:
            async for _ in self.gateways[gateway].counted(self.rate, lines(), reservation, "ada"):
                pass

    async def close(self):
        for gateway in self.gateways:
            await gateway.close()


@pytest.fixture
def store(tmp_path):
    store = Store.open(f"sqlite:///{tmp_path / 'store.sqlite3'}")
    yield store
    store.close()


def run(service, use):
    async def whole():
        try:
            return await use(service)
        finally:
            await service.close()

    return asyncio.run(whole())


def test_shares_requests_of_a_key_between_gateways(store):
    async def use(service):
        passed = [await service.passes(number % 2) for number in range(8)]
        service.now += 20.0
        return passed, [await service.passes(number % 2) for number in range(3)]

    first, later = run(Service(store, requests_per_minute=6), use)
    # Ten seconds for another one, and each gateway may have asked a moment ago.
    assert first == [0.0] * 6 + [10.0] * 2
    assert later == [0.0, 0.0, 10.0]


def test_asks_the_database_about_once_per_second(store):
    async def use(service):
        for _ in range(3):
            assert [await service.passes() for _ in range(50)] == [0.0] * 50
            service.now += 1.0
        return service.asked

    assert run(Service(store, requests_per_minute=6000), use) == 3


def test_repays_tokens_that_a_request_took_beyond_the_limit(store):
    async def use(service):
        assert await service.passes(tokens=100) == 0
        await service.counted({"start": 0, "token_ids": [1] * 40}, {"token_ids": [1] * 50})
        return [await service.passes(), await service.passes(1)]

    waits = run(Service(store, tokens_per_minute=60), use)
    # 90 beyond the 60 of a minute, of which it owes 60, and one for the next request; the other gateway
    # knows, too.
    assert waits == [61.0, 61.0]


def test_reserves_what_requests_in_flight_may_sample(store):
    async def use(service):
        first, asked = await service.passes(), service.asked
        with service.gateways[0].reserved(service.rate, 4000):
            during = [await service.passes() for _ in range(500)]
        return first, during, service.asked - asked, await service.passes()

    first, during, asked, later = run(Service(store, tokens_per_minute=1000), use)
    assert (first, later, asked) == (0.0, 0.0, 0)
    assert set(during) == {1.0}


def test_counts_tokens_once_although_a_caller_is_cancelled_meanwhile(store):
    async def use(service):
        assert await service.passes() == 0
        service.gateways[0].spend(service.rate, 30)
        service.now += 1.0
        service.until = asyncio.Event()
        cancelled = asyncio.create_task(service.passes())
        await service.begun.wait()
        cancelled.cancel()
        await asyncio.wait([cancelled])
        service.until.set()
        assert await service.passes() == 0
        service.gateways[0].spend(service.rate, 30)
        service.now += 1.0
        return await service.passes()

    # Of 60 and one per second, 60 were used; with the first 30 counted twice, none would be left.
    assert run(Service(store, tokens_per_minute=60), use) == 0.0


def test_passes_at_most_the_limit_while_refused_requests_come(store):
    async def use(service):
        passed = 0
        for _ in range(600):
            passed += await service.passes() == 0
            service.now += 0.1
        return passed, service.asked

    passed, asked = run(Service(store, requests_per_minute=30), use)
    assert passed in (59, 60)  # A minute's worth at once, and another in the minute that follows.
    assert asked <= 60 + passed


def test_refuses_keys_beyond_their_rate_with_time_to_wait(gateway, start_pool):
    start_pool()
    key = gateway.store.keys.create(gateway.tenants["ada"], "limited", requests_per_minute=2)
    body = {"requests": [{"request_id": "r", "policy": "nano", "prompt_ids": [1], "max_tokens": 1}]}
    with gateway.client(tenant="") as client:
        client.headers["Authorization"] = f"Bearer {key}"
        began = time.monotonic()
        answers = [client.post("/v1/sample", json=body) for _ in range(3)]
        took = time.monotonic() - began
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[2].json()["error"]["type"] == "TooManyRequestsError"
        assert 30 - took <= int(answers[2].headers["Retry-After"]) <= 30
        assert math.ceil(int(answers[2].headers["Retry-After-Ms"]) / 1000) == int(
            answers[2].headers["Retry-After"]
        )
    assert gateway.client("ada").post("/v1/sample", json=body).status_code == 200
