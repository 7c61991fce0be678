"""Network interfaces of this machine, which gloo and NCCL are told by name."""

from __future__ import annotations

import psutil

from tinkergym.errors import InternalServiceError


def interface_of(address: str) -> str:
    """Return the name of the interface with this address.

    Raises:
        InternalServiceError: No interface of this machine has it.
    """
    for name, found in psutil.net_if_addrs().items():
        if any(one.address == address for one in found):
            return str(name)
    raise InternalServiceError(
        f"no network interface of this machine has the address {address}",
        hint="start its Ray node with --node-ip-address, set to an address of one of its interfaces",
    )
