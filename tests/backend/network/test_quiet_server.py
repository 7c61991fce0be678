"""Tests of `backend.network.quiet_server`."""

import socket
import threading

import httpx
import uvicorn

from backend.network.quiet_server import QuietServer


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
