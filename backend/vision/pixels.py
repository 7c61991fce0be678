"""Image files as a model's vision tower takes them, and how its processor writes them into a prompt.

Knows transformers' processor and no model. Everything is remembered by the hash of the file.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from tinkergym.errors import InvalidRequestError, UnknownModelError
from tinkergym.images.files import opened
from tinkergym.trajectory.parts import ImageSpan

_MOST_KEPT_BYTES = 256 << 20


class ImageSource(Protocol):
    """Where image files come from."""

    def read(self, sha256: str) -> bytes:
        """Return a file.

        Raises:
            NotFoundError: There is none of that hash.
        """
        ...


@dataclass(frozen=True, slots=True)
class ReadImage:
    """An image, ready for the tower."""

    values: Tensor
    """[1, 1, channels, height, width] float32."""
    mask: Tensor
    """[1, 1, height, width], which pixels are real."""
    token_ids: tuple[int, ...]
    """What the processor writes into a prompt for it, markers included."""
    first: int
    """Where the placeholders begin in those."""
    tokens: int
    """How many placeholders."""


class ImageReader:
    """Reads images by hash, with the processor of one model. Thread-safe."""

    def __init__(self, directory: Path, placeholder: int, source: ImageSource) -> None:
        """Load the processor.

        Args:
            directory: Of the model.
            placeholder: The model's `image_token_id`.
            source: Of image files.

        Raises:
            UnknownModelError: transformers cannot load it.
        """
        # Only here: most services have no image model.
        from transformers import AutoProcessor

        self.placeholder = placeholder
        self._source = source
        try:
            self._processor: Any = AutoProcessor.from_pretrained(directory, local_files_only=True)
        except (OSError, ValueError, ImportError) as error:
            raise UnknownModelError(
                f"the processor in {str(directory)!r} cannot be loaded: {error}",
                hint="save it beside the weights, with AutoProcessor and save_pretrained",
                field="model",
            ) from error
        self._text = str(self._processor.tokenizer.convert_ids_to_tokens(placeholder))
        self._lock = threading.Lock()
        self._known: OrderedDict[str, ReadImage] = OrderedDict()
        self._bytes = 0

    def image(self, sha256: str) -> ReadImage:
        """Return an image.

        Raises:
            NotFoundError: There is no such file.
            InvalidImageError: It cannot be read.
        """
        with self._lock:
            known = self._known.get(sha256)
            if known is not None:
                self._known.move_to_end(sha256)
                return known
        read = self._read(self._source.read(sha256))
        with self._lock:
            if sha256 not in self._known:
                self._known[sha256] = read
                self._bytes += _size(read)
            while self._bytes > _MOST_KEPT_BYTES and len(self._known) > 1:
                self._bytes -= _size(self._known.popitem(last=False)[1])
        return read

    def check(self, token_ids: Sequence[int], images: Sequence[ImageSpan]) -> None:
        """Compare a prompt's placeholders with what the model's processor itself writes for its images.

        Raises:
            InvalidRequestError: They differ, or an image's placeholders are there without the image.
            NotFoundError: There is no such image.
        """
        before: list[int] = []
        for number, image in enumerate(images):
            read = self.image(image.sha256)
            begin = image.start - read.first
            found = token_ids[max(begin, 0) : begin + len(read.token_ids)]
            if begin < 0 or tuple(found) != read.token_ids or image.end - image.start != read.tokens:
                raise InvalidRequestError(
                    f"image {number} stands at the tokens [{image.start}, {image.end}), where the model's "
                    f"processor writes other ones: {read.tokens} placeholders between its markers",
                    hint="render the prompt with this model's renderer",
                    field="images",
                )
            before = list(read.token_ids[: read.first])
        covered = sum(image.end - image.start for image in images)
        if token_ids.count(self.placeholder) > covered:
            self._refuse_uncovered(token_ids, images, before)

    def _refuse_uncovered(
        self, token_ids: Sequence[int], images: Sequence[ImageSpan], before: Sequence[int]
    ) -> None:
        """Refuse placeholders without an image; a policy may have sampled single ones, without markers."""
        inside = {place for image in images for place in range(image.start, image.end)}
        for place, token in enumerate(token_ids):
            if token != self.placeholder or place in inside:
                continue
            run = token_ids[place - len(before) : place + 2] if before else token_ids[place : place + 2]
            if list(run) == [*before, self.placeholder, self.placeholder]:
                raise InvalidRequestError(
                    f"the placeholders of an image stand at token {place}, and no image is given for them",
                    hint="name the images of the prompt in `images`, in order",
                    field="images",
                )

    def _read(self, data: bytes) -> ReadImage:
        with opened(data) as picture:
            found = self._processor(text=[self._text], images=[[picture.convert("RGB")]])
        ids = tuple(map(int, found["input_ids"][0]))
        return ReadImage(
            values=torch.from_numpy(np.asarray(found["pixel_values"], dtype=np.float32)),
            mask=torch.from_numpy(np.asarray(found["pixel_attention_mask"])),
            token_ids=ids,
            first=ids.index(self.placeholder),
            tokens=ids.count(self.placeholder),
        )


def _size(image: ReadImage) -> int:
    return image.values.numel() * 4 + image.mask.numel() * image.mask.element_size()
