"""Connections of clients that do not do their part."""

import asyncio
import socket
import threading

import pytest
import uvicorn

from tinkergym.serving.connection_limits import PunctualHead


@pytest.fixture
def serve():
    """Return a function that serves an application on a protocol and returns the address."""
    servers = []

    def start(protocol, app):
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(app, http=protocol, ws="none", lifespan="off", log_level="error")
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        servers.append((server, thread))
        return listener.getsockname()

    yield start
    for server, thread in servers:
        server.should_exit = True
        thread.join(timeout=120)
        assert not thread.is_alive()  # it would take a core from all tests that follow


@pytest.fixture
def serve_stream(serve):
    """Return a function that serves an endless answer; returns the address, and an event for its end."""

    def serve_on(protocol):
        ended = threading.Event()

        async def app(scope, receive, send):
            async def wait_for_end():
                while (await receive())["type"] != "http.disconnect":
                    pass

            gone = asyncio.create_task(wait_for_end())
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while not gone.done():
                await send({"type": "http.response.body", "body": bytes(2**16), "more_body": True})
                # Once the client is gone, `send` returns at once: without this, nothing else would ever run.
                await asyncio.sleep(0)
            ended.set()

        return serve(protocol, app), ended

    return serve_on


def test_hangs_up_on_who_reads_nothing_of_an_answer(serve_stream):
    class Impatient(PunctualHead):
        reading_seconds = 0.1

    address, ended = serve_stream(Impatient)
    with socket.create_connection(address) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert ended.wait(60.0)


def test_serves_who_reads_on_for_longer_than_that(serve_stream):
    class Impatient(PunctualHead):
        reading_seconds = 1.0

    address, ended = serve_stream(Impatient)
    with socket.create_connection(address, timeout=120) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(200):
            assert client.recv(2**16)
        assert not ended.is_set()


def test_evicts_no_connection_that_still_has_answer_to_read(serve):
    size = 32 * 2**20  # more than the kernel takes

    async def app(scope, receive, send):
        length = [(b"content-length", str(size).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": bytes(size)})

    address = serve(PunctualHead.within(10.0, most_connections=1), app)
    with socket.create_connection(address, timeout=120) as slow, slow.makefile("rb") as answer:
        slow.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        while answer.readline() != b"\r\n":
            pass
        begun = len(answer.read(1))
        with socket.create_connection(address, timeout=120) as late:
            assert late.recv(12) == b"HTTP/1.1 503"
        assert begun + len(answer.read(size - begun)) == size
