"""Errors that only the service's own processes see; those that reach a client stand in `tinkergym.errors`."""

from __future__ import annotations

from tinkergym.errors import ConflictError, TinkerGymError

SERVICE_LOG = "logs/scheduler.log in the service's data_dir"
"""Where the tracebacks of pools, engines and jobs are; for hints."""


class LeaseLostError(ConflictError):
    """A worker wrote under a lease that it no longer holds; nothing of the write was kept."""


class ConfigError(TinkerGymError):
    """The operator's settings cannot be used; the service does not start."""


class StartError(TinkerGymError):
    """The service cannot start on this machine as it is: port taken, folder not writable, already running."""


class RequestTimeoutError(TinkerGymError):
    """A request was begun and then not sent to its end."""

    http_status = 408


class RankLostError(TinkerGymError):
    """A process of a data-parallel group died or fell silent, and with it the group."""
