"""The machine of this process, as Ray's other nodes know it."""

from __future__ import annotations

import ray


def own_address() -> str:
    """Return the address at which other nodes reach this one."""
    return str(ray.util.get_node_ip_address())
