"""Sampled tokens per second of one engine, and of that engine with an engine host in a second process.

Each engine computes with one thread, so that two of them have a core each; the same engine with two threads
shows what the second core is worth without replicas. The weights travel to the engine host as in the service,
by pull over HTTP. The requests are those of `bench_engine`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from starlette.requests import Request
from starlette.responses import Response
from transformers import AutoModelForCausalLM

from backend.compute.weights import AdapterWeights
from backend.engines.protocol import SamplingEngine
from backend.engines.spread.orders import EngineJoins, WantedPieces
from backend.engines.spread.spread_engine import SpreadEngine
from backend.engines.spread.weight_file import Piece
from backend.engines.spread.weight_pull import WeightPull
from backend.engines.transformers.transformers_engine import TransformersEngine
from backend.network.worker_calls import WorkerAddress, WorkerCalls
from backend.worker_url import any_port
from backend.workers.engine_endpoint import EngineEndpoint, HostedEngine
from backend.workers.worker_server import WorkerServer, read_body
from benchmarks.bench_engine import NANO, WORKLOADS, random_adapter, run_engine
from benchmarks.common import Figure, paired_ratio, write_result

_TOKEN = "benchmark"


def measure(runs: int = 5) -> list[Figure]:
    """Measure the three settings in turns, `runs` times after a warm-up."""
    torch.set_num_threads(1)
    weights = random_adapter(AutoModelForCausalLM.from_pretrained(NANO), seed=0)
    figures, details = [], {}
    with tempfile.TemporaryDirectory() as folder, _two_engines(Path(folder)) as two:
        one = TransformersEngine(NANO)
        for number, workload in enumerate(WORKLOADS):
            seconds: dict[str, list[float]] = {"one": [], "two": [], "threads": []}
            publishes: dict[str, list[float]] = {"one": [], "two": [], "threads": []}
            for run in range(runs + 1):
                version = 100 * number + run + 1
                for name, engine, threads in (("one", one, 1), ("two", two, 1), ("threads", one, 2)):
                    torch.set_num_threads(threads)
                    took = _seconds(engine, version, weights, number)
                    if run:
                        publishes[name].append(took[0])
                        seconds[name].append(took[1])
            gain = paired_ratio(seconds["one"], seconds["two"])
            threads_gain = paired_ratio(seconds["one"], seconds["threads"])
            tokens = {
                name: workload.sampled_tokens / statistics.median(all_) for name, all_ in seconds.items()
            }
            figures.append(
                Figure(
                    what=f"two engines against one, {workload.name}",
                    asked="> 1.0 x",
                    measured=f"{gain:.2f} x ({tokens['two']:,.0f} against {tokens['one']:,.0f} sampled "
                    f"tokens/s; one engine with two threads {threads_gain:.2f} x)",
                    reached=gain > 1.0,
                )
            )
            details[workload.name] = {"seconds": seconds, "publish_seconds": publishes}
        one.close()
    return write_result("engine_replicas", figures, {"workloads": details})


def _seconds(
    engine: SamplingEngine, version: int, weights: AdapterWeights, workload: int
) -> tuple[float, float]:
    """Return the seconds of a publish and of a workload."""
    begun = time.perf_counter()
    engine.publish("bench", version, weights)
    published = time.perf_counter()
    run_engine(engine, WORKLOADS[workload], version=version)
    return published - begun, time.perf_counter() - published


@contextlib.contextmanager
def _two_engines(folder: Path) -> Iterator[SamplingEngine]:
    spread = SpreadEngine(TransformersEngine(NANO), folder=folder, silent_after=600.0)

    async def weights(request: Request) -> Response:
        wanted = read_body(WantedPieces, await request.body())
        return Response(await asyncio.to_thread(spread.read_weights, wanted))

    source = WorkerServer("source", any_port(), _TOKEN, {("POST", "/weights"): weights})
    command = [sys.executable, "-m", "benchmarks.engine_replicas", source.url, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None, "it is a pipe"
        spread.join(EngineJoins(engine_id="engine-1", url=json.loads(child.stdout.readline()), token=_TOKEN))
        yield spread
        spread.close()
        child.kill()
    source.close()


def _host(source: str, folder: Path) -> None:
    """Serve an engine until the input ends."""
    torch.set_num_threads(1)
    calls = WorkerCalls()

    def fetch(pieces: Sequence[Piece]) -> bytes:
        body = WantedPieces(pieces=list(pieces)).model_dump_json()
        return calls.post(WorkerAddress(source, _TOKEN), "/weights", body, silence_seconds=60.0)

    hosted = HostedEngine(TransformersEngine(NANO), WeightPull(fetch, folder))
    endpoint = EngineEndpoint(hosted, any_port(), _TOKEN)
    print(json.dumps(endpoint.url), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _host(sys.argv[1], Path(sys.argv[2]))
