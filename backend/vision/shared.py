"""What the engine and the learner of a pool know of images together, so that each is read and seen once."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from pathlib import Path

from backend.vision.pixels import ImageReader, ImageSource
from backend.vision.tower import KeptFeatures


class SharedImages:
    """Readers of images, one for each model, and the features that base models make of them. Thread-safe."""

    def __init__(self, source: ImageSource) -> None:
        """Begin with nothing.

        Args:
            source: Of image files.
        """
        self._source = source
        self._lock = threading.Lock()
        self._readers: dict[Path, ImageReader] = {}
        self._features: dict[Hashable, KeptFeatures] = {}

    def reader(self, directory: Path, placeholder: int) -> ImageReader:
        """Return the reader of a model.

        Args:
            directory: Of the model.
            placeholder: Its `image_token_id`.

        Raises:
            UnknownModelError: transformers cannot load its processor.
        """
        with self._lock:
            if directory not in self._readers:
                self._readers[directory] = ImageReader(directory, placeholder, self._source)
            return self._readers[directory]

    def base_features(self, directory: Path, *computed: Hashable) -> KeptFeatures:
        """Return the features that a base model makes with the weights that are in its files.

        Args:
            directory: Of the model.
            computed: Where and in which type it computes them.
        """
        with self._lock:
            return self._features.setdefault((directory, *computed), KeptFeatures())


def shared(images: ImageSource | SharedImages) -> SharedImages:
    """Return images as they are shared; a bare source is shared with nobody yet."""
    return images if isinstance(images, SharedImages) else SharedImages(images)
