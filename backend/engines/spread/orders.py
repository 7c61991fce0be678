"""What a pool and its engine hosts tell each other."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from backend.engines.spread.manifest import Sha256, WeightManifest
from backend.engines.spread.weight_file import Piece
from tinkergym.schema.model import WireModel

_MOST_PIECES = 100_000


class HeldVersion(WireModel):
    """An engine host has loaded a version."""

    version: int
    sha256: Sha256
    """Of the weights that its engine was given."""


class EngineJoins(WireModel):
    """An engine host says that it lives; repeated as its heartbeat, and its first one adds it to the pool."""

    engine_id: str = Field(min_length=1, max_length=200)
    url: str
    token: str
    held: Mapping[str, HeldVersion] = Field({}, max_length=_MOST_PIECES)
    """What it has loaded, by policy: policies may end while its pool cannot reach it."""


class PublishOrder(WireModel):
    """A pool asks an engine host to hold a version of a policy."""

    policy: str
    version: int
    manifest: WeightManifest
    let_finish: bool
    """See `SamplingEngine.publish`."""


class RetireOrder(WireModel):
    """A pool asks an engine host to forget a policy."""

    policy: str


class WantedPieces(WireModel):
    """A request for weights; the response has their bytes, one piece after the other."""

    pieces: list[Piece] = Field(max_length=_MOST_PIECES)


class Done(WireModel):
    """An order was carried out."""
