import asyncio
from types import SimpleNamespace

import pytest
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect

from backend.openai_api.sampled import patiently, unless_gone
from backend.settings.gateway_limits import GatewayLimits
from tinkergym.errors import AuthenticationError, InvalidRequestError, ServiceUnavailableError


class Client:
    """A client that is connected until it hangs up, of a service with these limits that knows these keys."""

    def __init__(self, keys=("tg-own",), **limits):
        self.gone, self.headers = asyncio.Event(), Headers({"Authorization": "Bearer tg-own"})

        async def rights_of(key):
            return key if key in keys else None

        parts = SimpleNamespace(config=SimpleNamespace(limits=GatewayLimits(**limits)), rights_of=rights_of)
        self.app = SimpleNamespace(state=SimpleNamespace(parts=parts))
        self.state = SimpleNamespace(is_local_owner=True)

    async def receive(self):
        await self.gone.wait()
        return {"type": "http.disconnect"}


def test_cancels_work_whose_client_is_gone():
    async def hang_up():
        client, begun, ended = Client(), asyncio.Event(), []

        async def work():
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)

        waiting = asyncio.create_task(unless_gone(client, work()))
        await begun.wait()
        client.gone.set()
        with pytest.raises(ClientDisconnect):
            await waiting
        assert ended

    asyncio.run(hang_up())


def test_waits_until_the_model_is_loaded():
    tries = []

    async def attempt():
        tries.append(None)
        if len(tries) < 3:
            raise ServiceUnavailableError("the model is being loaded")
        return "loaded"

    async def ask():
        return await patiently(Client(warm_up_seconds=60), attempt)

    assert (asyncio.run(ask()), len(tries)) == ("loaded", 3)


@pytest.mark.parametrize("error", [ServiceUnavailableError("it is being loaded"), InvalidRequestError("no")])
def test_gives_up_after_the_operators_time_or_a_refusal(error):
    async def attempt():
        raise error

    async def ask():
        await patiently(Client(warm_up_seconds=0), attempt)

    with pytest.raises(type(error)):
        asyncio.run(ask())


def test_waits_no_longer_with_a_revoked_key():
    async def broken_off():
        raise ServiceUnavailableError("broke off")

    with pytest.raises(AuthenticationError):
        asyncio.run(patiently(Client(keys=(), warm_up_seconds=600), broken_off))
