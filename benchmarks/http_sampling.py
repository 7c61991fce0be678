"""Tokens per second of 64 concurrent HTTP clients of a service, against the engine in this process.

Both answer the same requests, and each of 64 clients sends the next one when its last is answered. The HTTP
clients are bare sockets in a separate process, so that the service is measured rather than the client's
processing of responses.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import queue
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import torch

import tinkergym as tg
from backend.compute.device_lock import release_openmp_threads
from backend.engines.protocol import BASE_POLICY
from backend.engines.transformers.transformers_engine import TransformersEngine
from benchmarks.common import Figure, paired_ratio, service, write_result
from benchmarks.step_work import model_directory
from tinkergym.errors import from_wire
from tinkergym.schema.sampling import Completion, SampleBatch, SampleFailure, SampleRequest

CLIENTS = 64
REQUESTS_EACH = 4
PROMPT_TOKENS = 17
ANSWER_TOKENS = 64
"""The token limit per turn by default."""
RUNS = 9
ASKED = 0.8


def measure() -> list[Figure]:
    """Run both several times, alternately, after a warm-up of each; compare them pair by pair."""
    inside, over_http = [], []
    with model_directory() as model:
        release_openmp_threads()  # otherwise this thread's load would slow down the engine
        engine = TransformersEngine(model)
        with service(None, f"models.bench={model}", 'preload=["bench"]') as running:
            with tg.Client(running.url, running.api_key) as client:
                client.ask(_request("bench", 0, 0))  # waits until the model is loaded
            context = multiprocessing.get_context("spawn")
            begin: multiprocessing.Queue[int] = context.Queue()
            times: multiprocessing.Queue[float] = context.Queue()
            clients = context.Process(
                target=http_clients, args=(running.url, running.api_key, "bench", begin, times)
            )
            clients.start()
            for run in range(RUNS + 1):
                inside.append(_ask_engine(engine, run))
                begin.put(run)
                over_http.append(times.get(timeout=120))
            clients.join()
        engine.close()
    del inside[0], over_http[0]
    tokens = CLIENTS * REQUESTS_EACH * ANSWER_TOKENS
    rate, bound = tokens / statistics.median(over_http), tokens / statistics.median(inside)
    ratio = paired_ratio(inside, over_http)
    figure = Figure(
        what=f"{CLIENTS} concurrent HTTP sampling clients against the in-process engine",
        asked=f">= {ASKED} x",
        measured=f"{ratio:.2f} x ({rate:,.0f} against {bound:,.0f} tokens/s)",
        reached=ratio >= ASKED,
        margin=ratio / ASKED,
    )
    details = {
        "requests": CLIENTS * REQUESTS_EACH,
        "answer_tokens": ANSWER_TOKENS,
        "http_seconds": over_http,
        "in_process_seconds": inside,
        "threads": torch.get_num_threads(),
    }
    return write_result("http_sampling", [figure], details)


def _request(policy: str, run: int, number: int) -> SampleRequest:
    draw = random.Random(1000 * run + number)
    return SampleRequest(
        request_id=str(number),
        policy=policy,
        policy_version=None,
        prompt_ids=[draw.randrange(3, 800) for _ in range(PROMPT_TOKENS)],
        max_tokens=ANSWER_TOKENS,
        seed=number,
    )


def _ask_engine(engine: TransformersEngine, run: int) -> float:
    answered: queue.SimpleQueue[Sequence[Completion | SampleFailure]] = queue.SimpleQueue()
    policy, version = BASE_POLICY, 0
    requests = [
        _request(policy, run, number).model_copy(update={"policy_version": version})
        for number in range(CLIENTS * REQUESTS_EACH)
    ]
    began = time.perf_counter()
    waiting = iter(requests)
    engine.submit([next(waiting) for _ in range(CLIENTS)], answered.put)
    left = len(requests)
    while left:
        answers = answered.get()
        for answer in answers:
            if not isinstance(answer, Completion):
                raise from_wire(answer.error.model_dump())
        left -= len(answers)
        onward = [request for _, request in zip(answers, waiting, strict=False)]
        if onward:
            engine.submit(onward, answered.put)
    return time.perf_counter() - began


def http_clients(url: str, key: str, model: str, begin: Any, times: Any) -> None:
    """For each number in `begin`, let all clients send their requests; put the seconds into `times`."""
    asyncio.run(_all_runs(url, key, model, begin, times))


async def _all_runs(url: str, key: str, model: str, begin: Any, times: Any) -> None:
    address = urlsplit(url)
    for _ in range(RUNS + 1):
        run = begin.get()
        # The gateway ends connections that stay idle between two runs.
        connections = [await asyncio.open_connection(address.hostname, address.port) for _ in range(CLIENTS)]
        bodies = [
            SampleBatch(requests=[_request(model, run, number)]).model_dump_json().encode()
            for number in range(CLIENTS * REQUESTS_EACH)
        ]
        began = time.perf_counter()
        await asyncio.gather(
            *(
                _client(reader, writer, key, bodies[number::CLIENTS])
                for number, (reader, writer) in enumerate(connections)
            )
        )
        times.put(time.perf_counter() - began)
        for _, writer in connections:
            writer.close()


async def _client(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str, bodies: list[bytes]
) -> None:
    for body in bodies:
        head = (
            "POST /v1/sample HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        headers = (await reader.readuntil(b"\r\n\r\n")).lower()
        answer = b""
        if b"transfer-encoding: chunked" in headers:
            while size := int(await reader.readline(), 16):
                answer += (await reader.readexactly(size + 2))[:size]
            await reader.readline()
        else:
            length = int(headers.split(b"content-length:")[1].split(b"\r\n")[0])
            answer = await reader.readexactly(length)
        if b" 200 " not in headers[:20] or len(json.loads(answer)["token_ids"]) != ANSWER_TOKENS:
            raise RuntimeError(f"the service answered {headers[:20]!r}: {answer[:300]!r}")
