"""Image uploads: each image is sent once, identified by the hash of its bytes."""

from __future__ import annotations

from pydantic import Field

from tinkergym.schema.model import WireModel
from tinkergym.trajectory.parts import Sha256

MOST_NAMES = 1000
"""Each is a change of a file on the disk."""


class ImageNames(WireModel):
    """Hashes of images; the body of `POST /v1/images/missing`, and its response."""

    images: list[Sha256] = Field(max_length=MOST_NAMES)


class ImageKept(WireModel):
    """An image is on the service's disk."""

    sha256: Sha256
