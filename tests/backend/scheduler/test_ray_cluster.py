from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.service, pytest.mark.full("starts Ray for itself")]


@pytest.fixture(scope="module")
def undisturbed(host):
    return host.final_weights(host.submit())


def test_listens_only_on_this_machine(host, undisturbed):
    for process in [psutil.Process(host.process.pid), *host.below()]:
        for connection in process.net_connections():
            if connection.status == psutil.CONN_LISTEN and connection.family != socket.AF_UNIX:
                assert connection.laddr.ip in {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, process.cmdline()


def test_gives_environments_less_priority_than_sampling_and_training(host, undisturbed):
    def niceness(name):
        # Of each thread: the kernel keeps a priority per thread.
        return [os.getpriority(os.PRIO_PROCESS, thread.id) for thread in host.find(name).threads()]

    assert max(niceness("PoolProcess")) == os.getpriority(os.PRIO_PROCESS, 0)
    assert min(niceness("env_worker_process")) >= max(niceness("PoolProcess")) + 10


def test_hides_ray_and_the_services_variables_from_environments(host, undisturbed):
    worker = host.find("env_worker_process")
    found = worker.environ()
    assert found["PACK_KEY"] == "1"
    assert not {"CANARY_KEY", "RAY_AUTH_TOKEN", "TINKERGYM_SERVICE_CONFIG"} & found.keys()
    assert {"CANARY_KEY", "RAY_AUTH_TOKEN"} <= host.find("raylet/raylet").environ().keys()
    inside = str(host.config.ray_dir)
    assert not [one for one in worker.net_connections("unix") if str(one.raddr).startswith(inside)]


def test_closes_files_of_ray_to_other_users(host, undisturbed):
    private = host.config.run_dir
    assert private.lstat().st_uid == os.getuid()
    assert stat.S_IMODE(private.lstat().st_mode) == 0o700
    written = []
    for process in host.below():
        with suppress(psutil.Error):
            written += [Path(file.path) for file in process.open_files() if file.mode != "r"]
            written += [
                Path(connection.laddr)
                for connection in process.net_connections("unix")
                if str(connection.laddr).startswith("/")
            ]
    assert len(written) > 20  # logs and sockets
    own = (private, host.config.data_dir, host.log)
    assert {path for path in written if not any(path.is_relative_to(folder) for folder in own)} == set()
    (session,) = host.config.ray_dir.glob("session_2*")
    assert (session / "sockets" / "raylet").is_socket()
