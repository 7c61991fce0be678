"""What tests of images have in common: a model, its renderer, pictures, and where their files are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from backend.catalog.models import load_renderer_bundle
from backend.settings.served_models import PACKAGED_MODELS
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import NotFoundError
from tinkergym.images.stored_images import ImageFile, image_file
from tinkergym.messages import observation_messages
from tinkergym.schema.sampling import SampleRequest

NANO_VL = Path(PACKAGED_MODELS["nano-vl"])
PIXELS = np.random.default_rng(0).integers(0, 255, (40, 64, 3), np.uint8)


@dataclass(frozen=True)
class Seeing:
    """A model with image support, and the pictures it is shown."""

    directory: Path
    sizes: tuple[tuple[int, int], ...] = ((64, 64),)
    """Height and width of the pictures, in turn."""

    @cached_property
    def renderer(self) -> Renderer:
        """Of the model."""
        return Renderer.from_bundle(load_renderer_bundle(self.directory.name, self.directory))

    def picture(self, number: int) -> ImageFile:
        """A picture of its own for each number."""
        size = self.sizes[number % len(self.sizes)]
        return image_file(np.random.default_rng(number).integers(0, 255, (*size, 3), np.uint8))

    def look(
        self, name: str, *numbers: int, text: str = "Find the area.", **settings: object
    ) -> SampleRequest:
        """A request that shows these pictures."""
        shown = [self.picture(number).data for number in numbers]
        messages = observation_messages({"images": shown, "text": text})
        ids = self.renderer.start(messages)
        defaults = {"policy": "", "max_tokens": 5, "seed": 1}
        return SampleRequest(
            request_id=name,
            prompt_ids=ids,
            images=self.renderer.spans(ids, messages),
            **{**defaults, **settings},
        )


_NANO = Seeing(NANO_VL)
picture, look = _NANO.picture, _NANO.look


def renderer() -> Renderer:
    """Of nano-vl."""
    return _NANO.renderer


class Pictures:
    """The first so many pictures; implements `ImageSource`."""

    def __init__(self, count: int = 100, of: Seeing = _NANO) -> None:
        self.files = {file.sha256: file for file in map(of.picture, range(count))}
        self.reads = 0

    def read(self, sha256: str) -> bytes:
        self.reads += 1
        if sha256 not in self.files:
            raise NotFoundError("there is no such image", field="images")
        return self.files[sha256].data
