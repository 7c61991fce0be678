"""The fixtures of a gateway in this process."""

from tests.backend.gateway_lab import client, gateway, in_background, owner, running_gateway, spec, start_pool

__all__ = ["client", "gateway", "in_background", "owner", "running_gateway", "spec", "start_pool"]
