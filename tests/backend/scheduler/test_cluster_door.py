from __future__ import annotations

import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from backend.config import ServiceConfig
from backend.errors import ConfigError
from backend.scheduler.cluster_door import (
    bootstrap_address,
    machines_of,
    require_cluster,
    require_open,
    require_reachable,
    set_token,
)


def settings(tmp_path, **ray):
    return ServiceConfig(data_dir=tmp_path, ray={"address": "10.0.0.5:6379", **ray})


def test_takes_the_token_from_a_file(tmp_path):
    file = tmp_path / "token"
    file.write_text(" 0123abcd\n")
    found = set_token(settings(tmp_path, token_file=file), {})
    assert (found["RAY_AUTH_MODE"], found["RAY_AUTH_TOKEN"]) == ("token", "0123abcd")


@pytest.mark.parametrize("content", [None, "\n"])
def test_names_a_token_file_without_a_token(tmp_path, content):
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError) as refused:
        set_token(settings(tmp_path, token_file=file), {})
    assert refused.value.field == "ray.token_file"


def test_leaves_a_token_to_ray_that_its_own_variable_names(tmp_path):
    assert "RAY_AUTH_TOKEN" not in set_token(settings(tmp_path), {"RAY_AUTH_TOKEN_PATH": "/t"})


def test_refuses_an_address_at_which_nothing_answers():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        require_open(address)
    with pytest.raises(ConfigError) as refused:
        require_open(address)
    assert refused.value.field == "ray.address"


def test_says_in_plain_words_that_an_address_is_silent(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = settings(tmp_path, address=f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(ConfigError) as refused:
            require_cluster(config, seconds=0.1)
    assert refused.value.field == "ray.address"
    assert sys.executable not in refused.value.message


@pytest.mark.parametrize("address", ["ray://10.0.0.5:10001", "10.0.0.5", "http://10.0.0.5:6379"])
def test_rejects_what_is_no_address_of_a_cluster(tmp_path, address):
    with pytest.raises(ValueError, match="address"):
        settings(tmp_path, address=address)


def test_forgets_cluster_that_its_node_has_left(tmp_path, monkeypatch):
    left, current = "10.0.0.5:6379", "10.0.0.6:6379"
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(current)  # as `ray start` does
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    # Ray looks at the machine's processes, among which other tests may have some.
    command = ["raylet", "-c", "input()", f"--gcs-address={left}"]
    with subprocess.Popen(command, executable=sys.executable, stdin=subprocess.PIPE) as node:
        assert bootstrap_address("auto") in (left, current)
        node.kill()
    assert bootstrap_address("auto") != left


HERE, ELSEWHERE = "127.0.0.1", "192.0.2.7"
SHARED = {"database_url": "postgresql://db/store", "blobs": "/mnt/shared"}


def test_joins_a_cluster_whose_workers_reach_everything(tmp_path):
    require_reachable([HERE], "cluster:1", ServiceConfig(data_dir=tmp_path))
    config = ServiceConfig(data_dir=tmp_path, private_network=True, **SHARED)
    require_reachable([HERE, ELSEWHERE], "cluster:1", config)


@pytest.mark.parametrize(
    ("addresses", "settings", "field"),
    [
        ([ELSEWHERE], {"private_network": True, **SHARED}, "ray.address"),
        ([HERE, ELSEWHERE], SHARED, "private_network"),
        ([HERE, ELSEWHERE], {"private_network": True, "blobs": "/mnt/shared"}, "database_url"),
        ([HERE, ELSEWHERE], {"private_network": True, "database_url": "postgresql://db/store"}, "blobs"),
    ],
)
def test_refuses_cluster_in_which_something_is_out_of_reach(tmp_path, addresses, settings, field):
    with pytest.raises(ConfigError) as refused:
        require_reachable(addresses, "cluster:1", ServiceConfig(data_dir=tmp_path, **settings))
    assert refused.value.field == field


def test_shows_nodes_to_plan_once_gpu_memory_is_known():
    resources = {"CPU": 8.0, "GPU": 2.0, "memory": 3e9, "node:10.0.0.5": 1.0}
    node = SimpleNamespace(node_manager_address="10.0.0.5", resources_total=resources, labels={"zone": "b"})
    (machine,) = machines_of([node], 24)
    assert (machine.node_id, machine.cpus, machine.memory_bytes) == ("10.0.0.5", 8.0, 3 * 10**9)
    assert (machine.gpus, machine.labels) == ((24, 24), {"zone": "b"})
    with pytest.raises(ConfigError) as refused:
        machines_of([node], None)
    assert refused.value.field == "gpu_bytes"
