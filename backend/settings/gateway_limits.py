"""Limits of the gateway: the section `limits` of the operator's settings."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from backend.planning.strict_settings import Settings
from tinkergym.images.stored_images import MOST_BYTES, MOST_PIXELS
from tinkergym.schema.refusals import Refusal


class GatewayLimits(Settings):
    """Limits of the gateway, per request and per client."""

    body_bytes: int = Field(8 * 2**20, ge=1024)
    """Largest request body. Larger ones get 413 and are never held in memory. A body may contain one JSON
    value per 8 of these bytes; a request for samples, one per 16."""
    bodies_bytes: int = Field(32 * 2**20, ge=1024)
    """Total size of bodies being received. One key may use half of it. Further requests get 503 with
    `Retry-After`."""
    connections: int = Field(1000, ge=10)
    """Open connections. Further ones take the place of one without a request, longest idle first; if all have
    one, they get 503. One key may have half as many open requests, event streams included; further ones get
    429. A client that does not read its response for 60 s is disconnected."""
    request_seconds: float = Field(10.0, gt=0)
    """Time for a request's header to arrive (at most 10 s), and again for its body, plus a second per 32
    KiB."""
    job_check_seconds: float = Field(15.0, gt=0)
    """Time to create and reset an installed environment when a job is submitted."""
    job_checks_at_once: int = Field(2, ge=1)
    """Job checks at once, each in its own process. If there are several, a tenant has at most half of
    them."""
    evaluations_at_once: int = Field(2, ge=1)
    """Evaluations that the service plays at once, each in its own process, one per tenant."""
    evaluation_seconds: float = Field(3600.0, gt=0)
    """Time for one evaluation."""
    data_bytes: int = Field(4 * 2**30, ge=1024)
    """Datasets that one tenant may keep on the service's disk, for SFT and preference jobs."""
    adapter_bytes: int = Field(2 * 2**30, ge=1024)
    """Largest file of an adapter that a tenant sends, and all parts of such files that wait for the rest."""
    adapters_bytes: int = Field(16 * 2**30, ge=1024)
    """Adapters that one tenant has sent and the service keeps. Deleting their jobs makes room."""
    image_bytes: int = Field(MOST_BYTES, ge=1024, le=MOST_BYTES)
    """Largest image file. At most `body_bytes`. It can be lowered, but not raised: clients and
    environments refuse larger ones themselves."""
    image_pixels: int = Field(MOST_PIXELS, ge=1, le=MOST_PIXELS)
    """Most pixels of an image: height times width. It can be lowered, but not raised."""
    images_bytes: int = Field(4 * 2**30, ge=1024)
    """Images that one tenant may keep on the service's disk. To make room for new ones, those are deleted
    that were last used more than an hour before its oldest unfinished job was created, or an hour ago if it
    has none."""
    stored_images: int = Field(50_000, ge=1)
    """The same limit as a number of images. A small file uses more disk space than its size."""
    calls_bytes: int = Field(256 * 2**20, ge=1024)
    """Calls of own training loops that one tenant may have waiting, compressed. Clients hold back further
    ones."""
    prompt_images: int = Field(64, ge=1)
    """Most images in one prompt. At most 64 with `engine="vllm"`."""
    job_bytes: int = Field(256 * 1024, ge=1024)
    """Largest job description."""
    episodes_per_step: int = Field(16_384, ge=1)
    """Most episodes per train step, including rounds of dynamic sampling. They are all in memory at
    once."""
    samples_in_flight: int = Field(2048, ge=1)
    """Sampling requests that one tenant may have in flight at a model's worker. More get 429 with
    `Retry-After`, and clients wait. A deterministic job that a client plays may have at most this many
    episodes per step."""
    warm_up_seconds: float = Field(60.0, ge=0)
    """How long a request of the OpenAI API waits for its model, which is loaded when it is first used and
    unloaded when it was idle. Then it gets 503 with `Retry-After`."""

    @model_validator(mode="after")
    def _the_largest_body_has_room(self) -> Self:
        if self.bodies_bytes < self.body_bytes:
            reason = f"must be at least body_bytes = {self.body_bytes}, or the largest body never fits"
            raise Refusal("bodies_bytes", reason, "raise it").in_validator()
        if "image_bytes" in self.model_fields_set and self.image_bytes > self.body_bytes:
            reason = f"must be at most body_bytes = {self.body_bytes}, or the largest image does not fit"
            raise Refusal("image_bytes", reason, "raise that as well").in_validator()
        return self
