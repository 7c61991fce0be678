"""Errors inside the service; those that reach a client are in `tinkergym.errors`."""

from __future__ import annotations

from tinkergym.errors import ConflictError, ServiceUnavailableError, TinkerGymError

SERVICE_LOG = "logs/scheduler.log in the service's data_dir"
"""Where to find the tracebacks of pools, engines and jobs; for hints."""


class LeaseLostError(ConflictError):
    """A worker wrote under a lease that it no longer holds. Nothing was stored."""


class ConfigError(TinkerGymError):
    """The operator's settings are invalid, or this machine cannot do what they say."""


class RequestTimeoutError(TinkerGymError):
    """A request was started but not sent completely."""

    http_status = 408


class RankLostError(TinkerGymError):
    """A process of a data-parallel group died or stopped responding, and with it the group."""


class WeightsUnavailableError(TinkerGymError):
    """An engine host could not fetch a version's weights: their source is gone, or has a newer version."""


class WeightsDamagedError(TinkerGymError):
    """The weights of a policy's version reached an engine host with other bytes than were published."""


class BlobsUnavailableError(ServiceUnavailableError):
    """The blob store does not answer, or lacks what the database names; nothing is known to be damaged."""


class WorkerStoppingError(TinkerGymError):
    """The worker is shutting down; the job returns to the queue."""


class ClientSilentError(TinkerGymError):
    """The job's client was silent for too long: the job gives up its place until one attaches."""


class PausedError(TinkerGymError):
    """The job should pause: its tenant asked for it, or its budget is used up."""

    def __init__(self, message: str, *, asked: bool) -> None:
        super().__init__(message)
        self.asked = asked
