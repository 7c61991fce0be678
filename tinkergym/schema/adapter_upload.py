"""A PEFT adapter as it is uploaded: its settings, and its weights in parts identified by hash."""

from __future__ import annotations

from pydantic import Field

from tinkergym.schema.data import Sha256
from tinkergym.schema.model import WireModel

PART_BYTES = 4 * 2**20
"""The size of all parts but the last."""
MOST_CONFIG_CHARACTERS = 2**20


class AdapterUpload(WireModel):
    """The body of `POST /v1/adapters`."""

    model: str = Field(min_length=1, max_length=500)
    """The base model."""
    config: str = Field(max_length=MOST_CONFIG_CHARACTERS)
    """The text of `adapter_config.json`."""
    sha256: Sha256
    """Of `adapter_model.safetensors`."""
    parts: list[Sha256] = Field(min_length=1, max_length=20_000)
    """Its parts, sent before, in order."""
    base_sha256: str = Field("", pattern=r"^([0-9a-f]{64})?$")
    """The weights that it was trained on, as its export says; empty if unknown."""
    name: str = Field("", max_length=100)
    """A label to find it in lists."""
