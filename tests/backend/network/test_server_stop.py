"""Tests of `backend.network.server_stop`."""

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import uvicorn

from backend.network.server_stop import AnswersAtStop, QuietServer


async def says_hello(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


def test_answers_until_another_thread_tells_it_to_exit():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = QuietServer(uvicorn.Config(says_hello, lifespan="off", log_level="critical"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert httpx.get(address, trust_env=False).text == "hello"
        server.tell_to_exit()
        thread.join(timeout=60)
        assert not thread.is_alive()


def test_exits_at_once_if_told_before_it_runs():
    server = QuietServer(uvicorn.Config(says_hello, lifespan="off", log_level="critical"))
    server.tell_to_exit()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.run(sockets=[listener])


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
