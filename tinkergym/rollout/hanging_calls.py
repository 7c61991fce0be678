"""Environments that hang: what their episodes report.

Each call has `limits.step_timeout_seconds`. The player looks a few times per second, ends the episode of an
overdue call as `environment_timeout`, and gives the environment to `HostPool.discard`, which abandons its
thread or kills its process. The next episode gets a new environment.
"""

from __future__ import annotations

from tinkergym.rollout.environment_host import Host


def overdue_text(host: Host, call: str, limit_seconds: float) -> str:
    """Say which call did not return, with the stack of where it hangs if the host knows it."""
    where = host.where().rstrip()
    text = f"{call} did not return within {limit_seconds} s"
    return f"{text}; it is here:\n{where}" if where else text


def late_text(call: str, seconds: float, limit_seconds: float) -> str:
    """Say which call returned too late, from a host that cannot interrupt a call."""
    return f"{call} returned after {seconds:.3g} s, not within {limit_seconds:g} s"
