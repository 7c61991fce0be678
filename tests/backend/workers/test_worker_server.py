"""The server of a worker's endpoint: what ends with a request, and what ends the process."""

from __future__ import annotations

import subprocess
import sys

import httpx
import pytest

# A process of its own, because it ends.
SERVER = """
import sys
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
        ("raise RuntimeError('CUDA out of memory')", 7),
        ("raise ValueError('a request for 3 TB')", 7),
    ],
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
