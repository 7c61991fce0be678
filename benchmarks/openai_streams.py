"""32 concurrent streams of the OpenAI API: errors, the first token, and throughput against `/v1/sample`.

Both sample the same prompts with the same seeds, in pairs of runs one right after the other. The clients are
in this process, on asyncio; the service has its own. Also: how soon a client that hung up costs nothing more.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import statistics
import time
from typing import Any

import httpx

import tinkergym as tg
from benchmarks.common import Figure, paired_ratio, service, write_result
from tinkergym.agent.renderer import Renderer
from tinkergym.schema.sampling import SampleBatch, SampleRequest

STREAMS = 32
ANSWER_TOKENS = 128
TEMPERATURE = 10.0
"""At 1, nano ends an answer after two tokens, and this would measure requests instead of streams."""
RUNS = 5
FIRST_SECONDS = 0.3
ASKED = 0.9
FREED_SECONDS = 1.0
MODEL = "nano"


def measure() -> list[Figure]:
    """Run both several times, alternately, after a warm-up of each."""
    load = os.getloadavg()[0]
    with service(None, f'preload=["{MODEL}"]', "limits.warm_up_seconds=300") as running:
        with tg.Client(running.url, running.api_key) as client:
            renderer = Renderer.from_bundle(client.api.renderer(MODEL))
        found = asyncio.run(_runs(running.url, running.api_key, renderer))
    first = sorted(found["first_seconds"])
    p50, p99 = statistics.median(first), first[math.ceil(0.99 * len(first)) - 1]
    ratio = paired_ratio(found["sample_seconds"], found["stream_seconds"])
    rate = statistics.median(found["tokens"]) / statistics.median(found["stream_seconds"])
    freed = max(found["freed_seconds"])
    failed = found["failed"]
    figures = [
        Figure(
            what=f"{STREAMS} concurrent streams of the OpenAI API, {RUNS} times: errors",
            asked="0",
            measured=str(failed),
            reached=failed == 0,
        ),
        Figure(
            what=f"{STREAMS} concurrent streams: first token, 99th percentile",
            asked=f"<= {1000 * FIRST_SECONDS:.0f} ms",
            measured=f"{1000 * p99:.0f} ms (median {1000 * p50:.0f} ms)",
            reached=p99 <= FIRST_SECONDS,
            margin=FIRST_SECONDS / p99,
        ),
        Figure(
            what=f"{STREAMS} concurrent streams: tokens per second against `/v1/sample`",
            asked=f">= {ASKED} x",
            measured=f"{ratio:.2f} x ({rate:,.0f} tokens/s)",
            reached=ratio >= ASKED,
            margin=ratio / ASKED,
        ),
        Figure(
            what="answer to the next request after 32 clients of long streams have hung up",
            asked=f"<= {FREED_SECONDS:.0f} s",
            measured=f"{freed:.2f} s",
            reached=freed <= FREED_SECONDS,
            margin=FREED_SECONDS / freed,
        ),
    ]
    return write_result("openai_streams", figures, {**found, "load_before": load})


def _messages(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Question {number}: which number comes after {number}?"}]


def _request(renderer: Renderer, number: int) -> SampleRequest:
    prompt: Any = _messages(number)
    return SampleRequest(
        request_id=str(number),
        policy=MODEL,
        policy_version=None,
        prompt_ids=renderer.start(prompt),
        max_tokens=ANSWER_TOKENS,
        temperature=TEMPERATURE,
        stop_ids=renderer.stop_ids,
        seed=number,
    )


async def _runs(url: str, key: str, renderer: Renderer) -> dict[str, Any]:
    found: dict[str, Any] = {"first_seconds": [], "failed": 0, "tokens": []}
    found |= {"sample_seconds": [], "stream_seconds": [], "freed_seconds": []}
    headers = {"Authorization": f"Bearer {key}"}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=url, headers=headers, timeout=120, trust_env=False, limits=limits
    ) as client:
        await _stream(client, 0)  # waits until the model is loaded
        for run in range(RUNS + 1):
            begun = time.perf_counter()
            numbers = range(run * STREAMS, (run + 1) * STREAMS)
            await asyncio.gather(*(_sample(client, _request(renderer, number)) for number in numbers))
            sampled = time.perf_counter() - begun
            begun = time.perf_counter()
            streams = await asyncio.gather(*(_stream(client, number) for number in numbers))
            streamed = time.perf_counter() - begun
            if run == 0:
                continue  # the first warms up
            found["sample_seconds"].append(sampled)
            found["stream_seconds"].append(streamed)
            found["first_seconds"] += [first for first, _ in streams]
            found["tokens"].append(sum(tokens for _, tokens in streams))
            found["failed"] += sum(tokens == 0 for _, tokens in streams)
            await asyncio.gather(*(_hang_up(client, number) for number in numbers))
            begun = time.perf_counter()
            await _stream(client, 0, most=1)
            found["freed_seconds"].append(time.perf_counter() - begun)
    return found


async def _sample(client: httpx.AsyncClient, request: SampleRequest) -> None:
    body = SampleBatch(requests=[request]).model_dump_json()
    (await client.post("/v1/sample", content=body)).raise_for_status()


def _body(number: int, most: int | None) -> dict[str, Any]:
    asked = {"model": MODEL, "messages": _messages(number), "seed": number, "max_tokens": most}
    asked["temperature"] = TEMPERATURE
    return {**asked, "stream": True, "stream_options": {"include_usage": True}}


async def _stream(client: httpx.AsyncClient, number: int, most: int = ANSWER_TOKENS) -> tuple[float, int]:
    """Return the seconds until the first event, and the tokens; no tokens if it failed."""
    begun, first, tokens = time.perf_counter(), 0.0, 0
    async with client.stream("POST", "/openai/v1/chat/completions", json=_body(number, most)) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                first = first or time.perf_counter() - begun
                event = json.loads(line.removeprefix("data: "))
                tokens = event.get("usage", {}).get("completion_tokens", tokens)
    return first, tokens


async def _hang_up(client: httpx.AsyncClient, number: int) -> None:
    async with client.stream("POST", "/openai/v1/chat/completions", json=_body(number, None)) as response:
        response.raise_for_status()
        await anext(response.aiter_lines())
