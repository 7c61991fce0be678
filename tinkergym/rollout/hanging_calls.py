"""Environments that hang: when a call is overdue, and what its episode reports.

Each call has `limits.step_timeout_seconds`. The player asks here a few times per second, ends the episode of
an overdue call as `environment_timeout`, and gives the environment to `HostPool.discard`, which abandons its
thread or kills its process. The next episode gets a new environment.
"""

from __future__ import annotations

from tinkergym.rollout.environment_host import Host


def is_overdue(host: Host, ends_at: float, now: float) -> bool:
    """Whether a host's running call has exceeded its time, not counting the wait for other environments.

    Args:
        host: Runs the call.
        ends_at: When the call must have returned, in seconds on the caller's clock.
        now: The time on that clock.
    """
    return now >= ends_at + host.waited_seconds()


def overdue_text(host: Host, call: str, limit_seconds: float) -> str:
    """Say which call did not return, with the stack of where it hangs if the host knows it."""
    where = host.where().rstrip()
    text = f"{call} did not return within {limit_seconds} s"
    return f"{text}; it is here:\n{where}" if where else text


def late_text(call: str, seconds: float, limit_seconds: float) -> str:
    """Say which call returned too late, from a host that cannot interrupt a call."""
    return f"{call} returned after {seconds:.3g} s, not within {limit_seconds:g} s"
