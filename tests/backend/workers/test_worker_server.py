"""The server of a worker's endpoint ends its process when that has no memory to answer."""

from __future__ import annotations

import subprocess
import sys

import httpx
import pytest

# A process of its own, because it ends.
SERVER = """
import asyncio, sys
import psutil
from backend.processes.exhaustion import end_when_exhausted
from backend.worker_url import any_port
from backend.workers.worker_server import WorkerServer
from tests.limited_memory import limit_memory

async def answer(request):
    {fails}

server = WorkerServer("own", any_port(), "secret", {{("GET", "/work"): answer}})
end_when_exhausted()
limit_memory(psutil.Process(), 8 * 2**20)
print(server.url, flush=True)
sys.stdin.read()
sys.exit(7)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not limit a process's memory")
@pytest.mark.parametrize(
    ("fails", "status"),
    [
        ("bytearray(2**40)", 1),
        ("asyncio.get_running_loop().call_soon(bytearray, 2**40); await asyncio.sleep(60)", 1),
        ("raise ValueError('not a number')", 7),
    ],
    ids=["in a request", "while uvicorn reads", "another error"],
)
def test_ends_without_memory_in_or_outside_of_a_request(fails, status):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", SERVER.format(fails=fails)], **pipes) as child:
        url = child.stdout.readline().strip()
        with httpx.Client(trust_env=False, timeout=60.0) as client:
            try:
                reply = client.get(f"{url}/work", headers={"authorization": "Bearer secret"}).status_code
            except httpx.TransportError:
                reply = None
        _, said = child.communicate(timeout=60)
    assert url.startswith("http://"), said
    assert (child.returncode, reply) == (status, None if status == 1 else 500), said
    assert ("no memory left" in said) == (status == 1)
