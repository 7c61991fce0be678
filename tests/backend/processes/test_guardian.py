import json
import subprocess
import sys
import threading
import time
from contextlib import suppress

import httpx
import psutil
import pytest

from tests.backend.served import still_alive

pytestmark = pytest.mark.service

_PATIENCE_SECONDS = 120.0


@pytest.mark.full("starts a service to kill it")
def test_leaves_nothing_behind_when_it_is_killed_either(serving):
    served = serving(ignores_signals=True)
    served.scheduler_is_up()
    below = served.descendants()
    served.process.kill()
    served.process.wait(timeout=60.0)
    assert still_alive(below) == []


@pytest.fixture
def service(tmp_path):
    """The whole service, with a pool and an environment worker."""
    command = [sys.executable, "-m", "backend.app.supervisor", "--json"]
    settings = [f"data_dir={tmp_path / 'data'}", "port=0", "env_workers=1"]
    command += [word for setting in settings for word in ("--set", setting)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield psutil.Process(process.pid)
    left = []
    with suppress(psutil.Error):
        left = psutil.Process(process.pid).children(recursive=True)
    for one in [process, *left]:
        with suppress(psutil.Error):
            one.kill()
    process.wait(timeout=60.0)


def until(happened):
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not (found := happened()):
        assert time.monotonic() < deadline, "waited in vain"
        threading.Event().wait(0.1)
    return found


def is_complete(local_file):
    with suppress(OSError, ValueError, httpx.HTTPError):
        url = json.loads(local_file.read_text())["url"]
        return httpx.get(url + "/v1/health", timeout=20, trust_env=False).json()["status"] == "ok"
    return False


def running(processes, word):
    found = []
    for process in processes:
        with suppress(psutil.Error):
            if any(word in part for part in [process.name(), *process.cmdline()]):
                found.append(process)
    return found


@pytest.mark.full("starts Ray and kills it")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends processes with their parent")
def test_leaves_nothing_behind_when_killed_together_with_guardians(service, tmp_path):
    until(lambda: is_complete(tmp_path / "data" / "local.json"))
    until(lambda: running(service.children(recursive=True), "env_worker_process"))
    below = service.children(recursive=True)
    guardians = running(below, "backend.processes.guardian")
    assert len(guardians) == 2, "one of the service, one of the scheduler's host"
    for part in ("raylet", "PoolProcess", "backend.gateway"):
        assert running(below, part), part
    # Stopped first, so that none sees the end of another.
    for process in [*guardians, service]:
        process.suspend()
    for process in [*guardians, service]:
        process.kill()
    assert still_alive(below) == []
