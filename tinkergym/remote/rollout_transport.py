"""What a rollout worker needs, over HTTP: leases, results, sampling, renderers.

The same code serves a worker in the user's script (through the gateway) and one in the service (on the pool's
own endpoint). Only the paths differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from tinkergym.remote.http_sampler import HttpSampler
from tinkergym.remote.image_upload import ImageUpload
from tinkergym.remote.transport import Connection
from tinkergym.schema.episodes import LeaseReply, LeaseRequest, SubmitReply, SubmitRequest
from tinkergym.schema.views import RendererBundle

_GOODBYE_SECONDS = 3.0
"""Timeout of a worker's last message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """The routes for a rollout worker."""

    lease: str
    submit: str
    sample: str
    renderer: str
    images: str
    params: Mapping[str, str] = field(default_factory=dict)
    """Query parameters of lease and submit."""
    image_params: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_gateway(cls, job_id: str) -> Self:
        """The public routes, for the episodes of one job."""
        episodes = f"/v1/jobs/{job_id}/episodes"
        return cls(
            lease=f"{episodes}/lease",
            submit=f"{episodes}/submit",
            sample="/v1/sample",
            renderer="/v1/renderer",
            images="/v1/images",
        )

    @classmethod
    def of_pool(cls, job_id: str = "", worker_id: str = "") -> Self:
        """A pool's own routes. Without a job, for the episodes of any job that plays on the server.

        Args:
            job_id: The job.
            worker_id: The worker. Its images belong to the tenant that it plays for.
        """
        return cls(
            lease="/episodes/lease",
            submit="/episodes/submit",
            sample="/sample",
            renderer="/renderer",
            images="/images",
            params={"job_id": job_id},
            image_params={"job_id": job_id, "worker_id": worker_id},
        )


class HttpRolloutTransport:
    """Implements `tinkergym.rollout.rollout_worker.RolloutTransport` over a connection."""

    def __init__(self, connection: Connection, routes: Routes) -> None:
        """Use `connection`, which the caller closes."""
        self._connection = connection
        self._routes = routes
        self._images = ImageUpload(connection, routes.images, routes.image_params)

    def lease(self, request: LeaseRequest) -> LeaseReply:
        """Request episodes and renew the held leases."""
        answer = self._connection.call(
            "POST",
            self._routes.lease,
            params=self._routes.params,
            body=request.model_dump_json().encode(),
            # Episodes whose response got lost return when their lease expires. Retrying at once would only
            # lease more, and the worker's own loop asks again anyway.
            idempotent=False,
            timeout_seconds=_GOODBYE_SECONDS if request.leaving else request.wait_seconds + 30.0,
        )
        return LeaseReply.model_validate_json(answer)

    def submit(self, request: SubmitRequest) -> SubmitReply:
        """Submit results. When this returns they are durable."""
        answer = self._connection.call(
            "POST",
            self._routes.submit,
            params=self._routes.params,
            body=request.model_dump_json().encode(),
            timeout_seconds=120.0,
        )
        return SubmitReply.model_validate_json(answer)

    def sampler(self) -> HttpSampler:
        """Return a new sampler; the caller closes it."""
        return HttpSampler(self._connection, self._routes.sample, images=self._images)

    def renderer(self, model: str) -> RendererBundle:
        """Fetch what turns messages into the model's token ids."""
        answer = self._connection.call("GET", self._routes.renderer, params={"model": model})
        return RendererBundle.model_validate_json(answer)
