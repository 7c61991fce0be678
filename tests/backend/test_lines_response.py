"""An answer of JSON lines: complete with its last line, and over when nobody reads it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from backend.lines_response import LinesResponse, whole_lines

_SECONDS = 60.0


class Client:
    """The other end of one request: what it was sent, when it hangs up, and whether what is held was left."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.left = False
        self.hangs_up = asyncio.Event()

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *_: object) -> None:
        self.left = True

    async def receive(self) -> dict[str, Any]:
        await self.hangs_up.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def bodies(self) -> list[tuple[bytes, bool]]:
        return [(m["body"], m["more_body"]) for m in self.sent if m["type"] == "http.response.body"]


def answer(
    chunks: Callable[[Client], AsyncGenerator[bytes, None]], lines: int, client: Callable[[], Client] = Client
) -> Client:
    """Send an answer to a client and return it."""

    async def run() -> Client:
        reader = client()
        response = LinesResponse(chunks(reader), lines, reader)
        await asyncio.wait_for(response({"type": "http"}, reader.receive, reader.send), _SECONDS)
        return reader

    return asyncio.run(run())


def test_ends_answer_with_last_line_and_no_empty_chunk():
    async def chunks(_client):
        yield b"1\n2\n"
        yield b"3\n"

    client = answer(chunks, lines=3)

    assert client.sent[0]["status"] == 200
    assert (b"content-type", b"application/x-ndjson") in client.sent[0]["headers"]
    assert client.bodies == [(b"1\n2\n", True), (b"3\n", False)]


def test_accepts_lines_that_are_cut_anywhere():
    async def chunks(_client):
        for piece in (b"o", b"ne\nt", b"wo", b"\n"):
            yield piece

    assert answer(chunks, lines=2).bodies == [(b"o", True), (b"ne\nt", True), (b"wo", True), (b"\n", False)]


def test_ends_the_answer_with_lines_that_break_off():
    async def chunks(_client):
        yield b"1\n"

    assert answer(chunks, lines=2).bodies == [(b"1\n", True), (b"", False)]


def test_ends_work_on_answer_of_client_that_hung_up():
    closed = []

    async def chunks(client):
        try:
            yield b"1\n"
            client.hangs_up.set()
            await asyncio.sleep(2 * _SECONDS)
        finally:
            closed.append(True)

    assert answer(chunks, lines=2).bodies == [(b"1\n", True)]
    assert closed == [True]


def test_holds_nothing_when_the_client_hangs_up_during_the_head():
    class Slow(Client):
        async def send(self, message: Any) -> None:
            self.hangs_up.set()
            await asyncio.sleep(2 * _SECONDS)  # as a connection whose buffer is full

    async def chunks(_client):
        yield b"1\n"

    client = answer(chunks, lines=2, client=Slow)

    assert client.sent == []
    assert client.left


def test_ends_line_source_quietly_though_client_leaves_with_last_line():
    ended = []

    class Hasty(Client):
        async def send(self, message: Any) -> None:
            await super().send(message)
            if not message.get("more_body", True):
                self.hangs_up.set()

    async def chunks(_client):
        yield b"1\n"
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ended.append(True)

    answer(chunks, lines=1, client=Hasty)

    assert ended == [True]


def test_joins_the_pieces_of_lines_without_one_that_broke_off():
    async def joined(*pieces: bytes) -> list[bytes]:
        async def source() -> AsyncGenerator[bytes]:
            for piece in pieces:
                yield piece

        return [lines async for lines in whole_lines(source())]

    found = asyncio.run(joined(b"a", b"b", b"c\nd", b"e\nf\n", b"\n", b"g"))
    assert found == [b"abc\n", b"de\nf\n", b"\n"]
