"""Tests of `backend.network.answers_at_stop`."""

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import uvicorn

from backend.network.answers_at_stop import AnswersAtStop
from backend.network.quiet_server import QuietServer


@pytest.mark.parametrize("begun", [False, True])
def test_answers_503_to_what_the_stop_interrupts(begun):
    arrived = threading.Event()

    async def never_ends(scope, receive, send):
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
        arrived.set()
        await asyncio.Event().wait()

    config = uvicorn.Config(
        AnswersAtStop(never_ends), lifespan="off", log_level="critical", timeout_graceful_shutdown=0
    )
    server = QuietServer(config)
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(2) as threads:
        serving = threads.submit(server.run, sockets=[listener])
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/call"
        asked = threads.submit(httpx.get, address, trust_env=False, timeout=60)
        assert arrived.wait(60)
        server.tell_to_exit()
        serving.result(60)
        if begun:
            with pytest.raises(httpx.RemoteProtocolError):  # Half an answer does not pass for a whole one.
                asked.result(60)
        else:
            assert asked.result(60).status_code == 503
            assert asked.result(60).json()["error"]["type"] == "ServiceUnavailableError"
