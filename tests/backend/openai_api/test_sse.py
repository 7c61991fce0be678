import asyncio
import json
import threading
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf
from types import SimpleNamespace

import pytest

from backend.gateway.pool_proxy import PoolStream
from backend.openai_api.sampled import patiently
from backend.openai_api.sse import EventsResponse
from tests.backend.openai_api.test_sampled import Client
from tinkergym.errors import InvalidRequestError, ServiceUnavailableError
from tinkergym.openai_api.server_events import STILL_SAMPLING
from tinkergym.schema.sampling import Completion, CompletionPart

pytestmark = pytest.mark.service


def events_of(response):
    """Return a stream's events, without the last line, which has a form of its own."""
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("text", ["hello", "é 漢字 🙂", "a, b. c\n\n"])
def test_streams_what_the_unstreamed_request_returns(chat, text):
    settings = {"logprobs": True, "top_logprobs": 1, "return_token_ids": True, "n": 2, "seed": 1}
    settings["prompt_logprobs"] = 1
    whole = chat(f"SAY {text}", **settings).json()
    events = events_of(chat(f"SAY {text}", stream=True, **settings))
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert events[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert [one["prompt_logprobs"] for one in events if "prompt_logprobs" in one] == [
        whole["prompt_logprobs"]
    ]
    for choice in whole["choices"]:
        own = [c for event in events for c in event["choices"] if c["index"] == choice["index"]]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(c["delta"].get("content", "") for c in own) == choice["message"]["content"] == text
        assert [token for c in own for token in c.get("token_ids") or []] == choice["token_ids"]
        tokens = [token for c in own if c["logprobs"] for token in c["logprobs"]["content"]]
        assert tokens == choice["logprobs"]["content"]
        assert [c["finish_reason"] for c in own] == [None] * (len(own) - 1) + [choice["finish_reason"]]


def test_ends_with_usage_without_a_choice_if_wanted(chat):
    whole = chat("SAY hello").json()
    with_usage = events_of(chat("SAY hello", stream=True, stream_options={"include_usage": True}))
    assert (with_usage[-1]["choices"], with_usage[-1]["usage"]) == ([], whole["usage"])
    assert all("usage" not in event for event in events_of(chat("SAY hello", stream=True)))


def test_holds_stop_strings_back_from_streams(chat):
    events = events_of(chat("SAY go STOLEN STOP on", stream=True, stop=["STOP"]))
    pieces = [c["delta"].get("content", "") for event in events for c in event["choices"]]
    assert "".join(pieces) == "go STOLEN "


def test_answers_errors_before_the_first_token_as_statuses(chat, service):
    assert chat("a" * 600, stream=True).status_code == 400
    assert chat(stream=True, model="gpt-9").status_code == 404


def test_streams_texts_of_both_other_routes(api):
    asked = {"model": "nano", "prompt": "SAY one<|im_end|>", "stream": True}
    events = events_of(api.post("completions", json=asked))
    assert "".join(c["text"] for event in events for c in event["choices"]) == "one"
    asked = {"model": "nano", "input": "SAY two", "stream": True}
    blocks = [block.split("\n") for block in api.post("responses", json=asked).text.split("\n\n") if block]
    found = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
    assert [event["type"] for event in found] == [name.removeprefix("event: ") for name, _ in blocks]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    deltas = [event["delta"] for event in found if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == "two"
    last = found[-1]
    assert (last["type"], last["response"]["status"]) == ("response.completed", "completed")
    assert last["response"]["output"][0]["content"][0]["text"] == "two"


def test_ends_the_pools_work_when_a_client_hangs_up(api, service):
    ended = threading.Event()

    @asynccontextmanager
    async def endless(_pool, _path, body):
        wanted = json.loads(body)["requests"][0]
        part = CompletionPart(
            request_id=wanted["request_id"],
            start=0,
            token_ids=[97] * 40,
            sampling_logprobs=[0.0] * 40,
            policy_version=0,
        )

        async def chunks():
            yield part.model_dump_json().encode() + b"\n"
            await asyncio.Event().wait()

        try:
            yield PoolStream(chunks(), lambda: None)
        finally:
            ended.set()

    service.pool.stream = endless
    try:
        asked = {"model": "nano", "messages": [{"role": "user", "content": "a"}], "stream": True}
        with api.stream("POST", "chat/completions", json=asked) as reply:
            lines = reply.iter_lines()  # closes the response when it is dropped
            assert next(lines).startswith("data: ")
            assert not ended.is_set()
        assert ended.wait(60)
    finally:
        del service.pool.stream


@pytest.mark.parametrize("stream", [False, True])
def test_reads_large_answers_from_small_pieces(api, service, stream):
    token_ids = [97] * 20_000

    @asynccontextmanager
    async def in_pieces(_pool, _path, body):
        whole = Completion(
            request_id=json.loads(body)["requests"][0]["request_id"],
            token_ids=token_ids,
            sampling_logprobs=[-0.5] * len(token_ids),
            finish_reason="length",
            policy_version=0,
        )
        line = whole.model_dump_json().encode() + b"\n"

        async def chunks():
            for start in range(0, len(line), 4096):
                yield line[start : start + 4096]

        yield PoolStream(chunks(), lambda: None)

    service.pool.stream = in_pieces
    try:
        asked = {"model": "nano", "prompt": "a", "return_token_ids": True, "stream": stream}
        reply = api.post("completions", json=asked)
    finally:
        del service.pool.stream
    found = events_of(reply) if stream else [reply.json()]
    assert [token for one in found for token in one["choices"][0]["token_ids"]] == token_ids


class Impatient(EventsResponse):
    silent_seconds = opens_seconds = 0.01


def sent_by(attempt, *, hangs_up=False):
    """Return what a stream sends whose work begins by `attempt`, which is given an event: a comment was sent.

    The error if it never opened.
    """

    async def run():
        client, commented, sent, reasons = Client(), asyncio.Event(), [], ["nothing"]

        async def following(_sampling):
            yield b"data: more\n\n"

        async def send(message):
            sent.append(message.get("body"))
            if sent[-1] and sent[-1].startswith(b":"):
                commented.set()
                if hangs_up:
                    client.gone.set()

        def loading(error):
            reasons.append(str(error))

        work = patiently(client, lambda: attempt(commented), loading)
        response = await Impatient.opened(client, work, following, lambda: reasons[-1])
        await response({"type": "http"}, client.receive, send)
        return [one for one in sent if one != STILL_SAMPLING]

    return asyncio.run(run())


def test_opens_a_stream_with_the_reason_while_it_waits():
    async def attempt(commented):
        if not commented.is_set():
            raise ServiceUnavailableError("the model\nis being loaded")
        return SimpleNamespace(held=AsyncExitStack()), b"data: first\n\n"

    header, *others = sent_by(attempt)
    comments = [one for one in others if one.startswith(b":")]
    assert comments[-1] == b": the model is being loaded\n\n"
    assert (header, others[len(comments) :]) == (None, [b"data: first\n\n", b"data: more\n\n", b""])


def test_answers_errors_as_events_once_a_stream_is_open():
    async def attempt(commented):
        await commented.wait()
        raise InvalidRequestError("too hot", field="temperature")

    *_, event, last = sent_by(attempt)
    error = json.loads(event.removeprefix(b"data: "))["error"]
    assert (error["type"], error["param"], last) == ("invalid_request_error", "temperature", b"")


def test_answers_immediate_errors_as_statuses():
    async def attempt(_commented):
        raise InvalidRequestError("too hot")

    with pytest.raises(InvalidRequestError):
        sent_by(attempt)


def test_ends_work_not_begun_when_a_client_hangs_up():
    ended = []

    async def attempt(_commented):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    sent_by(attempt, hangs_up=True)
    assert ended


def test_sends_comments_until_the_next_event():
    async def sent():
        commented, bodies = asyncio.Event(), []

        async def chunks():
            await commented.wait()
            yield b"data: x\n\n"

        async def send(message):
            bodies.append(message.get("body"))
            if bodies[-1] == STILL_SAMPLING:
                commented.set()

        response = Impatient(chunks(), inf, AsyncExitStack())
        await response({"type": "http"}, asyncio.Event().wait, send)
        return bodies

    header, comment, *others = asyncio.run(sent())
    assert (header, comment) == (None, STILL_SAMPLING)
    assert [one for one in others if one != STILL_SAMPLING] == [b"data: x\n\n", b""]
