"""What the operator sees of the running service: its workers, its checks and its logs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tinkergym.schema.model import WireModel
from tinkergym.schema.queue import RunningJob

_MOST_WORKERS = 100_000

MOST_LOG_LINES = 2000

MOST_LOG_BYTES = 256 * 1024
"""Of the end of a log that one answer has."""


class EnvironmentWorker(WireModel):
    """A process that plays episodes for a pool."""

    worker_id: str
    plays_for: str
    """The tenant whose episodes it plays, or an isolated job; empty before the first."""
    silent_seconds: float
    """Since it last asked for something."""


class PoolProof(WireModel):
    """Whether a pool can be sampled."""

    sampled: bool
    """Whether it sampled a token a moment ago, or a job of it does; False only while its engine sleeps, which
    a request would wake."""


class PoolReport(WireModel):
    """What a pool says about itself."""

    started_at: float
    """When it began to serve, in Unix seconds."""
    node: str
    """The name of its machine."""
    device: str
    """`cpu`, `cuda` or another name of torch's."""
    environment_workers: list[EnvironmentWorker] = Field(max_length=_MOST_WORKERS)


class WorkerView(WireModel):
    """A worker of the service."""

    worker_id: str
    kind: Literal["pool", "engine_host"]
    model: str
    state: Literal["ready", "silent"]
    """`silent` if it has not been heard for `lease_seconds`, or does not answer now."""
    silent_seconds: float
    """Since its last heartbeat."""
    node: str = ""
    """Of an engine host, the address of its machine; of a pool, the name."""
    device: str = ""
    started_at: float | None = None
    """None while unknown."""
    memory_bytes: int
    """Of a pool with its environment workers and engine hosts; 0 while unknown."""
    jobs: list[RunningJob] = Field([], max_length=_MOST_WORKERS)
    """The jobs that it runs."""
    environment_workers: list[EnvironmentWorker] = Field([], max_length=_MOST_WORKERS)


class CheckView(WireModel):
    """Something that must hold for the service to work."""

    name: str
    ok: bool
    message: str
    """What was found, and what to do about it."""


class Operation(WireModel):
    """Workers and checks."""

    workers: list[WorkerView] = Field(max_length=_MOST_WORKERS)
    checks: list[CheckView] = Field(max_length=10_000)
    """Those that failed first."""


class LogFile(WireModel):
    """A log of the service's processes on the gateway's machine."""

    name: str
    bytes: int
    changed_at: float
    """Unix seconds."""


class LogList(WireModel):
    """The logs, by name."""

    logs: list[LogFile] = Field(max_length=1000)


class LogTail(WireModel):
    """The end of a log."""

    name: str
    text: str = Field(max_length=4 * MOST_LOG_BYTES)
    """Its last lines; long ones are cut. Common forms of keys and tokens are replaced by `<secret>`."""
    begins_later: bool
    """Whether the log has more before this."""
