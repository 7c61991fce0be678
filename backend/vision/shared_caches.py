"""Image caches shared by the engine and the learner of a pool, so that each image is processed once."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from pathlib import Path

from backend.vision.pixels import ImageReader, ImageSource
from backend.vision.tower import KeptFeatures


class SharedImages:
    """Image readers, one per model, and the features of base models. Thread-safe."""

    def __init__(self, source: ImageSource) -> None:
        """Start with empty caches.

        Args:
            source: Source of image files.
        """
        self._source = source
        self._lock = threading.Lock()
        self._readers: dict[Path, ImageReader] = {}
        self._features: dict[Hashable, KeptFeatures] = {}

    def reader(self, directory: Path, placeholder: int) -> ImageReader:
        """Return the reader of a model.

        Args:
            directory: The model's folder.
            placeholder: Its `image_token_id`.

        Raises:
            UnknownModelError: transformers cannot load its processor.
        """
        with self._lock:
            if directory not in self._readers:
                self._readers[directory] = ImageReader(directory, placeholder, self._source)
            return self._readers[directory]

    def base_features(self, directory: Path, *computed: Hashable) -> KeptFeatures:
        """Return the features computed by a base model with the weights in its files.

        Args:
            directory: The model's folder.
            computed: The device and type of the computation.
        """
        with self._lock:
            return self._features.setdefault((directory, *computed), KeptFeatures())


def shared(images: ImageSource | SharedImages) -> SharedImages:
    """Return shared images; a plain source gets new caches."""
    return images if isinstance(images, SharedImages) else SharedImages(images)
