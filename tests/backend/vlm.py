"""What tests of images have in common: the model, its renderer, pictures, and where their files are."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from backend.catalog.models import load_renderer_bundle
from backend.config import PACKAGED_MODELS
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import NotFoundError
from tinkergym.images.files import ImageFile, image_file
from tinkergym.messages import observation_messages
from tinkergym.schema.sampling import SampleRequest

NANO_VL = Path(PACKAGED_MODELS["nano-vl"])
PIXELS = np.random.default_rng(0).integers(0, 255, (40, 64, 3), np.uint8)


@cache
def renderer() -> Renderer:
    """Of nano-vl."""
    return Renderer.from_bundle(load_renderer_bundle("nano-vl", NANO_VL))


def picture(number: int) -> ImageFile:
    """A picture of its own for each number."""
    return image_file(np.random.default_rng(number).integers(0, 255, (64, 64, 3), np.uint8))


class Pictures:
    """The first so many pictures; implements `ImageSource`."""

    def __init__(self, count: int = 100) -> None:
        self.files = {file.sha256: file for file in map(picture, range(count))}
        self.reads = 0

    def read(self, sha256: str) -> bytes:
        self.reads += 1
        if sha256 not in self.files:
            raise NotFoundError("there is no such image", field="images")
        return self.files[sha256].data


def look(name: str, *numbers: int, text: str = "Find the area.", **settings: object) -> SampleRequest:
    """A request that shows these pictures."""
    messages = observation_messages({"images": [picture(number).data for number in numbers], "text": text})
    ids = renderer().start(messages)
    defaults = {"policy": "", "max_tokens": 5, "seed": 1}
    return SampleRequest(
        request_id=name,
        prompt_ids=ids,
        images=renderer().spans(ids, messages),
        **{**defaults, **settings},
    )
