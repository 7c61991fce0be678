"""`python -m backend.scheduler.cluster_door [nodes]`: whether the service can join its cluster; the nodes.

Answers with one line of JSON on the standard output: a refusal, or null, or the nodes. Ray itself waits for a
long time, does not say that the token was wrong, and may end the process that asks; so this one asks first.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from backend.config import ServiceConfig
from backend.errors import ConfigError
from backend.planning.machines import Machine
from backend.store.place import database_file
from tinkergym.errors import TinkerGymError, from_wire

_CONNECT_SECONDS = 3.0
_ANSWER_SECONDS = 5
_WHOLE_SECONDS = 30.0
"""Python starts and imports Ray first."""
_FIELD = "ray.address"
_ALIVE = 0
"""Ray's number for the state of a node."""


def set_token(config: ServiceConfig, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables by which Ray finds the cluster's token.

    Raises:
        ConfigError: The token's file cannot be read, or is empty.
    """
    found = {"RAY_USAGE_STATS_ENABLED": "0"}
    file = config.ray.token_file
    if file is None:
        named = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & environment.keys()
        home = Path("~/.ray/auth_token").expanduser().exists()
        return {"RAY_AUTH_MODE": "token", **found} if named or home else found
    try:
        token = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", field="ray.token_file") from error
    if not token:
        raise ConfigError(
            f"{file} is empty", hint="write the cluster's token into it", field="ray.token_file"
        )
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, **found}


def require_cluster(config: ServiceConfig, *, seconds: float = _WHOLE_SECONDS) -> None:
    """Check that the service can join the cluster, before anything starts. Asks in a process of its own.

    Raises:
        ConfigError: It cannot, and why.
    """
    _ask(config, seconds=seconds)


def cluster_nodes(config: ServiceConfig) -> list[Machine]:
    """Return the nodes of the cluster as a plan sees them. Asks in a process of its own.

    Raises:
        ConfigError: The cluster does not tell them, or not the memory of their GPUs.
    """
    return [Machine(**node) for node in _ask(config, "nodes")]


def _ask(config: ServiceConfig, *arguments: str, seconds: float = _WHOLE_SECONDS) -> Any:
    environment = {**os.environ, **set_token(config), **config.environment()}
    command = [sys.executable, "-m", "backend.scheduler.cluster_door", *arguments]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=seconds, check=True)
        # The answer is the last line, whatever a library printed before it.
        answer = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:  # Its text is the command.
        raise ConfigError(
            f"the Ray cluster at {config.ray.address} does not answer within {seconds:.0f} s",
            hint="check that ray.address is the head's HOST:PORT, 6379 by default",
            field=_FIELD,
        ) from None
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"the Ray cluster at {config.ray.address} cannot be asked ({error})", field=_FIELD
        ) from error
    if isinstance(answer, dict):
        raise from_wire(answer)
    return answer


def bootstrap_address(address: str) -> str:
    """Return HOST:PORT of the cluster's head.

    Raises:
        ConfigError: `auto`, and no node of a cluster runs on this machine.
    """
    if address != "auto":
        return address
    from ray._private import services

    # Ray finds its processes once. A node that has joined another head has another address.
    services.find_gcs_addresses.cache_clear()
    try:
        found = services.canonicalize_bootstrap_address("auto")
    except ConnectionError:
        found = None
    if not found:
        raise ConfigError(
            "no node of a Ray cluster runs on this machine",
            hint="start one with `ray start --address=HOST:PORT`",
            field=_FIELD,
        )
    return str(found)


def require_open(address: str) -> None:
    """Check that something accepts connections at HOST:PORT.

    Raises:
        ConfigError: Nothing does.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise ConfigError(
            f"nothing answers at the Ray cluster's address {address} ({error.strerror or error})",
            hint="check ray.address and that the head node runs",
            field=_FIELD,
        ) from error


def _nodes(config: ServiceConfig) -> tuple[str, list[Any]]:
    """Return the cluster's address and what it says about its nodes."""
    address = bootstrap_address(config.ray.address)
    require_open(address)
    import ray

    try:
        client = ray._raylet.GcsClient(address=address)
        nodes: Mapping[Any, Any] = client.get_all_node_info(timeout=_ANSWER_SECONDS, state_filter=_ALIVE)
    except ray.exceptions.AuthenticationError as error:
        raise ConfigError(
            f"the Ray cluster at {address} refuses the token",
            hint="name a file with the cluster's token in ray.token_file",
            field="ray.token_file",
        ) from error
    except Exception as error:
        raise ConfigError(
            f"the Ray cluster at {address} does not answer ({type(error).__name__})", field=_FIELD
        ) from error
    return address, list(nodes.values())


def machines_of(nodes: Iterable[Any], gpu_bytes: int | None) -> list[Machine]:
    """Return nodes as a plan sees them, before the service runs there.

    Args:
        nodes: Ray's records of them.
        gpu_bytes: The memory of each GPU, which Ray does not know.

    Raises:
        ConfigError: A node has GPUs, and `gpu_bytes` is not given.
    """
    found = []
    for node in nodes:
        resources, name = dict(node.resources_total), str(node.node_manager_address)
        gpus = int(resources.get("GPU", 0))
        if gpus and gpu_bytes is None:
            raise ConfigError(
                f"the memory of the {gpus} GPUs of {name} is not known before the service runs there",
                hint="set gpu_bytes",
                field="gpu_bytes",
            )
        found.append(
            Machine(
                node_id=name,
                cpus=resources.get("CPU", 0.0),
                memory_bytes=int(resources.get("memory", 0)),
                gpus=(gpu_bytes or 0,) * gpus,
                labels=dict(node.labels),
            )
        )
    return found


def require_reachable(addresses: Sequence[str], cluster: str, config: ServiceConfig) -> None:
    """Check that the service and workers on nodes with these addresses can reach each other.

    Raises:
        ConfigError: This machine is no node, or workers elsewhere could not reach something.
    """
    here = [address for address in addresses if _is_here(address)]
    if not here:
        raise ConfigError(
            f"this machine is not a node of the Ray cluster at {cluster}",
            hint=f"run `ray start --address={cluster} --num-cpus=0` on it first",
            field=_FIELD,
        )
    beyond = [address for address in addresses if not address.startswith("127.")]
    if beyond and not config.private_network:
        raise ConfigError(
            f"workers on {', '.join(sorted(set(beyond)))} would be reached without encryption",
            hint="set private_network=true if only the service's own machines can reach this network",
            field="private_network",
        )
    elsewhere = sorted({address for address in addresses if address not in here})
    if elsewhere and database_file(config.store_url) is not None:
        raise ConfigError(
            f"workers on {', '.join(elsewhere)} cannot reach a database file on this machine",
            hint="set database_url=postgresql://...",
            field="database_url",
        )
    if elsewhere and not config.blobs:
        raise ConfigError(
            f"workers on {', '.join(elsewhere)} cannot reach checkpoints in data_dir",
            hint="set blobs=s3://bucket/prefix, or a folder that all nodes mount",
            field="blobs",
        )


def _is_here(address: str) -> bool:
    with closing(socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)) as place:
        try:
            # Only an address of this machine can be bound. This needs no list of its interfaces.
            place.bind((address, 0))
        except OSError:
            return False
        return True


def main() -> None:
    """Look, and print what was found."""
    logging.disable(logging.CRITICAL)
    answer: object = None
    try:
        config = ServiceConfig.from_environment()
        address, nodes = _nodes(config)
        if sys.argv[1:]:
            answer = [asdict(machine) for machine in machines_of(nodes, config.gpu_bytes)]
        else:
            require_reachable([str(node.node_manager_address) for node in nodes], address, config)
    except TinkerGymError as error:
        answer = error.to_wire()
    print(json.dumps(answer), flush=True)
    # Ray's native threads may still be waiting for the cluster.
    os._exit(0)


if __name__ == "__main__":
    main()
