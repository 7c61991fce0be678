"""The fixtures of a gateway in this process."""

from tests.backend.gateway_lab import client, gateway, owner, running_gateway, spec

__all__ = ["client", "gateway", "owner", "running_gateway", "spec"]
