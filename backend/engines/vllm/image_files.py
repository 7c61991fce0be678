"""Images on their way to vLLM: read and checked here, passed as files named by their hash."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from backend.catalog.models import ModelFacts
from backend.settings.served_models import VLLM_MOST_IMAGES
from backend.vision.pixels import ImageReader, ImageSource
from backend.vision.shared_caches import SharedImages, shared
from tinkergym.errors import InvalidRequestError, TinkerGymError
from tinkergym.schema.sampling import SampleRequest
from tinkergym.trajectory.content_parts import ImageSpan

_MOST_BYTES = 256 << 20
"""Size limit for files in the folder; a removed file is written again when needed."""

Message = dict[str, Any]


def handed_images(
    facts: ModelFacts, images: ImageSource | SharedImages | None, folder: Path
) -> HandedImages | None:
    """Return the images of an engine; None if its model or the caller has none."""
    if images is None or facts.image_token_id is None:
        return None
    return HandedImages(shared(images).reader(facts.directory, facts.image_token_id), folder)


class HandedImages:
    """Writes images to files that vLLM's process reads. Thread-safe."""

    def __init__(self, reader: ImageReader, folder: Path, *, most_bytes: int = _MOST_BYTES) -> None:
        """Start without files.

        Args:
            reader: Reads the model's images.
            folder: A new folder for exclusive use.
            most_bytes: Size limit for stored files; those used longest ago are removed.
        """
        self._reader, self._folder, self._most = reader, folder, most_bytes
        # Taken while the engine's lock is held, never the other way round.
        self._lock = threading.Lock()
        self._there: OrderedDict[str, int] = OrderedDict()
        """The size of each file."""
        folder.mkdir(mode=0o700)

    def refusal(self, request: SampleRequest) -> TinkerGymError | None:
        """Read a request's images; return why they cannot be used, or None."""
        if len(request.images) > VLLM_MOST_IMAGES:
            return InvalidRequestError(
                f"a prompt contains {len(request.images)} images, but vLLM takes at most {VLLM_MOST_IMAGES}",
                hint="show fewer, or run the service with engine=transformers",
                field="images",
            )
        try:
            self._reader.check(request.prompt_ids, request.images)
        except TinkerGymError as error:
            return error
        return None

    def message(self, images: Sequence[ImageSpan]) -> list[Message]:
        """Return the description of a prompt's images for vLLM's process.

        Each has its hash, its file, and the range of its tokens in the prompt, including markers.
        """
        told = []
        for image in images:
            read = self._reader.image(image.sha256)
            begin = image.start - read.first
            told.append(
                {
                    "sha256": image.sha256,
                    "path": str(self._file(image.sha256)),
                    "begin": begin,
                    "end": begin + len(read.token_ids),
                    "placeholder": self._reader.placeholder,
                }
            )
        return told

    def tidy(self, in_use: Callable[[], set[str]]) -> None:
        """Remove files if there are too many, but none of an image in use."""
        with self._lock:
            if sum(self._there.values()) <= self._most:
                return
            needed = in_use()
            for sha256 in [sha256 for sha256 in self._there if sha256 not in needed]:
                (self._folder / sha256).unlink(missing_ok=True)
                del self._there[sha256]
                if sum(self._there.values()) <= self._most:
                    return

    def _file(self, sha256: str) -> Path:
        path = self._folder / sha256
        with self._lock:
            if sha256 not in self._there:
                data = self._reader.file(sha256)
                path.write_bytes(data)
                self._there[sha256] = len(data)
            self._there.move_to_end(sha256)
        return path
