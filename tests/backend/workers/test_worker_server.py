"""The server of a worker's endpoint: what ends with a request, and what ends the process."""

from __future__ import annotations

import subprocess
import sys

import httpx
import pytest

# A process of its own, because it ends.
SERVER = """
import asyncio, sys
from backend.worker_url import any_port
from backend.workers.worker_server import WorkerServer

async def answer(request):
    {fails}

server = WorkerServer("own", any_port(), "secret", {{("GET", "/work"): answer}})
print(server.url, flush=True)
sys.stdin.read()
sys.exit(7)
"""


@pytest.mark.parametrize(
    ("fails", "status"),
    [
        ("bytearray(2**62)", 1),
        ('raise RuntimeError("can\'t start new thread")', 1),
        # Outside of the request, as what uvicorn reads.
        ("asyncio.get_running_loop().call_soon(bytearray, 2**62); await asyncio.sleep(60)", 1),
        ("raise RuntimeError('CUDA out of memory')", 7),
    ],
    ids=["memory", "threads", "beside requests", "memory of a GPU"],
)
def test_ends_the_process_that_has_no_memory_to_answer(fails, status):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", SERVER.format(fails=fails)], **pipes) as child:
        url = f"{child.stdout.readline().strip()}/work"
        try:
            reply = httpx.get(url, headers={"authorization": "Bearer secret"}, timeout=60.0).status_code
        except httpx.HTTPError:
            reply = None
        child.stdin.close()
        assert (child.wait(60), reply) == (status, None if status == 1 else 500)


AROUND = """
import asyncio, os
from backend.network.server_stop import AnswersAtStop

async def app(scope, receive, send):
    raise {error}

try:
    asyncio.run(AnswersAtStop(app)({{"type": "http"}}, None, None))
finally:
    os._exit(7)
"""


@pytest.mark.parametrize(("error", "status"), [("MemoryError", 1), ("ValueError", 7)])
def test_ends_the_process_whose_application_has_no_memory(error, status):
    code = AROUND.format(error=error)
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == status
