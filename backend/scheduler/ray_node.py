"""The machine of this process, as Ray's other nodes know it."""

from __future__ import annotations

import logging

import ray

_log = logging.getLogger(__name__)


def own_address() -> str:
    """Return the address at which other nodes reach this one."""
    return str(ray.util.get_node_ip_address())


def head_answers(seconds: int) -> bool:
    """Whether the cluster's head answers a question within this time."""
    client = ray._private.worker.global_worker.gcs_client
    try:
        client.internal_kv_exists(b"tinkergym", None, timeout=seconds)
    except Exception as error:
        _log.warning("the cluster's head does not answer: %s", error)
        return False
    return True
