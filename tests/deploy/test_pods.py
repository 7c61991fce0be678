"""The probes and the commands of the pods, with a Ray that has no HTTP servers, as in the image."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import yaml

from backend.config import ServiceConfig
from backend.errors import ConfigError
from backend.scheduler.cluster_door import require_cluster

MANIFESTS = Path(__file__).parents[2] / "deploy" / "kubernetes"
(CLUSTER,) = yaml.safe_load_all((MANIFESTS / "raycluster.yaml").read_text())
(SCHEDULER,) = yaml.safe_load_all((MANIFESTS / "scheduler.yaml").read_text())
HEAD, (WORKER,) = CLUSTER["spec"]["headGroupSpec"], CLUSTER["spec"]["workerGroupSpecs"]
PROBES = ("readinessProbe", "livenessProbe")
PATIENCE_SECONDS = 120.0
STARTED = "Ray runtime started."


def container_of(pods):
    (container,) = pods["template"]["spec"]["containers"]
    return container


def test_asks_ports_that_raylet_and_gcs_listen_on():
    (gcs,) = container_of(HEAD)["ports"]
    raylet = WORKER["rayStartParams"]["node-manager-port"]
    for pods, port in ((HEAD, gcs["containerPort"]), (WORKER, int(raylet))):
        assert {container_of(pods)[probe]["grpc"]["port"] for probe in PROBES} == {port}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Pods:
    """Starts what pods run, all on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.node_port = folder, free_port(), free_port()
        # The service itself is not what is looked at.
        self.script("tinkergym", "sleep 600")
        self.script("ray", f'{sys.executable} -m ray.scripts.scripts "$@"')
        self.environment = {
            **os.environ,
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "RAY_TMPDIR": str(folder),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "0123456789abcdef" * 2,
            "RAY_gcs_rpc_server_reconnect_timeout_s": "5",  # a minute without it
        }
        self.started: list[subprocess.Popen[str]] = []

    def script(self, name: str, command: str) -> None:
        file = self.folder / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\nexec {command}\n")
        file.chmod(0o700)

    def run(self, *command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def head(self) -> subprocess.Popen[str]:
        settings = HEAD["rayStartParams"] | {"port": self.port, "node-manager-port": self.node_port}
        options = [f"--{name}={value}" for name, value in settings.items()]
        head = self.run("ray", "start", "--head", "--block", "--disable-usage-stats", *options)
        until_said(head, STARTED)
        return head

    def scheduler(self) -> subprocess.Popen[str]:
        text = container_of(SCHEDULER["spec"])["command"][-1]
        for ours, here in (
            ("tinkergym-head-svc:6379", f"127.0.0.1:{self.port}"),
            ("/tmp/ray/", f"{self.folder}/ray/"),
        ):
            assert ours in text
            text = text.replace(ours, here)
        return self.run("/bin/sh", "-c", text)

    def close(self) -> None:
        for process in self.started:
            with suppress(psutil.Error, ProcessLookupError):
                below = psutil.Process(process.pid).children(recursive=True)
                os.killpg(process.pid, signal.SIGKILL)
                for one in below:
                    with suppress(psutil.Error):
                        one.kill()
            process.wait()
            process.stdout.close()


def until_said(process, words):
    said = []
    for line in process.stdout:
        said.append(line)
        if words in line:
            return
    pytest.fail(f"ended with {process.wait()}: {''.join(said)[-2000:]}")


def below(process, name):
    (found,) = (one for one in psutil.Process(process.pid).children(recursive=True) if one.name() == name)
    return found


@pytest.fixture
def pods():
    folder = Path(tempfile.mkdtemp(prefix="pods"))  # Short, as the paths of sockets are.
    pods = Pods(folder)
    yield pods
    pods.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.service
@pytest.mark.full("starts a Ray head, and asks it in grpcio's words")
def test_tells_hung_raylet_from_healthy_one(pods):
    grpc = pytest.importorskip("grpc")
    health = pytest.importorskip("grpc_health.v1.health_pb2")
    stubs = pytest.importorskip("grpc_health.v1.health_pb2_grpc")

    def serves(pods_of, port):
        seconds = container_of(pods_of)["livenessProbe"]["timeoutSeconds"]
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            try:
                answer = stubs.HealthStub(channel).Check(health.HealthCheckRequest(), timeout=seconds)
            except grpc.RpcError:
                return False
        return answer.status == health.HealthCheckResponse.SERVING

    head = pods.head()
    assert serves(HEAD, pods.port)
    assert serves(WORKER, pods.node_port)
    raylet, gcs = below(head, "raylet"), below(head, "gcs_server")
    raylet.suspend()
    assert not serves(WORKER, pods.node_port)
    raylet.resume()
    assert serves(WORKER, pods.node_port)
    gcs.suspend()
    assert not serves(HEAD, pods.port)
    gcs.kill()
    assert head.wait(PATIENCE_SECONDS) == 1


@pytest.mark.service
@pytest.mark.full("starts two Ray heads, one after the other")
def test_joins_the_head_that_comes_next(pods):
    head, scheduler = pods.head(), pods.scheduler()
    until_said(scheduler, STARTED)
    raylet = below(scheduler, "raylet")
    below(head, "gcs_server").kill()
    head.wait(PATIENCE_SECONDS)
    raylet.wait(PATIENCE_SECONDS)
    pods.head()
    until_said(scheduler, STARTED)


@pytest.mark.service
@pytest.mark.full("starts a Ray head")
def test_names_a_token_that_the_cluster_refuses(pods, tmp_path, monkeypatch):
    pods.head()
    monkeypatch.setenv("RAY_TMPDIR", str(pods.folder))
    for token, field in (("f" * 32, "ray.token_file"), (pods.environment["RAY_AUTH_TOKEN"], None)):
        (tmp_path / "token").write_text(token)
        ray = {"address": f"127.0.0.1:{pods.port}", "token_file": tmp_path / "token"}
        config = ServiceConfig(data_dir=tmp_path, private_network=True, ray=ray)
        assert refused_field(config) == field


def refused_field(config):
    try:
        require_cluster(config)
    except ConfigError as refused:
        return refused.field
    return None
