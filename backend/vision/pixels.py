"""Image files as input of a model's vision tower, and how its processor writes them into a prompt.

Uses transformers' processor, but no model. Everything is cached by the hash of the file.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from backend.vision.processor import load_processor
from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.errors import InvalidImageError, InvalidRequestError, UnknownModelError
from tinkergym.images.stored_images import as_seen, opened
from tinkergym.trajectory.content_parts import ImageSpan

_INPUTS = ("pixel_values", "pixel_attention_mask", "image_grid_thw")
_MOST_KEPT_BYTES = 256 << 20
_MOST_TEXTS = 1000


class ImageSource(Protocol):
    """A source of image files."""

    def read(self, sha256: str) -> bytes:
        """Return a file.

        Raises:
            NotFoundError: There is none with that hash.
        """
        ...


@dataclass(frozen=True, slots=True)
class ReadImage:
    """An image, ready for the vision tower."""

    inputs: Mapping[str, Tensor]
    """Arguments of the model's `get_image_features`, by name: for Idefics3 pixels [1, 1, channels, height,
    width] float32 and their mask, for the Qwen-VL family patches [P, numbers] float32 and the numbers of rows
    and columns."""
    token_ids: tuple[int, ...]
    """The processor's token ids for it, including markers."""
    first: int
    """Where the placeholders begin in those ids."""
    tokens: int
    """How many placeholders."""
    grid: tuple[int, int] | None = None
    """Rows and columns of tokens, for models with positions inside images."""

    @property
    def bytes(self) -> int:
        """Its memory in bytes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.inputs.values())


class ImageReader:
    """Reads images by hash, with the processor of one model. Thread-safe."""

    def __init__(
        self, directory: Path, placeholder: int, source: ImageSource, *, most_bytes: int = _MOST_KEPT_BYTES
    ) -> None:
        """Load the processor.

        Args:
            directory: The model's folder.
            placeholder: The model's `image_token_id`.
            source: Source of image files.
            most_bytes: Memory for images; those used longest ago are dropped.

        Raises:
            UnknownModelError: transformers cannot load it.
        """
        self.placeholder = placeholder
        self._source = source
        try:
            self._processor: Any = load_processor(directory)
        except (OSError, ValueError, ImportError) as error:
            raise UnknownModelError(
                f"the processor in {str(directory)!r} cannot be loaded: {error}",
                hint="save it next to the weights, with AutoProcessor and save_pretrained",
                field="model",
            ) from error
        self._lock = threading.Lock()
        self._known: BoundedDict[str, ReadImage] = BoundedDict(most_bytes, size=lambda image: image.bytes)
        self._written: BoundedDict[str, tuple[int, ...]] = BoundedDict(_MOST_TEXTS)
        """Token ids that the processor writes for an image, by its text."""

    def image(self, sha256: str) -> ReadImage:
        """Return an image.

        Raises:
            NotFoundError: There is no such file.
            InvalidImageError: It cannot be read.
        """
        with self._lock:
            known = self._known.get(sha256)
            if known is not None:
                return known
        # Without the lock, as it takes long. Of two threads that read the same image, the first counts.
        read = self._read(self._source.read(sha256))
        with self._lock:
            if sha256 not in self._known:
                self._known[sha256] = read
        return read

    def grid(self, sha256: str) -> tuple[int, int]:
        """Return the rows and columns of an image's tokens, for a model with positions inside images.

        Raises:
            NotFoundError: There is no such file.
            InvalidImageError: It cannot be read.
        """
        grid = self.image(sha256).grid
        assert grid is not None, "the processor says no grid"
        return grid

    def file(self, sha256: str) -> bytes:
        """Return an image's file.

        Raises:
            NotFoundError: There is no such file.
        """
        return self._source.read(sha256)

    def check(self, token_ids: Sequence[int], images: Sequence[ImageSpan]) -> None:
        """Compare a prompt's placeholders with the output of the model's processor for its images.

        Raises:
            InvalidRequestError: They differ, or there are placeholders without an image.
            NotFoundError: There is no such image.
        """
        before: list[int] = []
        for number, image in enumerate(images):
            read = self.image(image.sha256)
            begin = image.start - read.first
            found = token_ids[max(begin, 0) : begin + len(read.token_ids)]
            if begin < 0 or tuple(found) != read.token_ids or image.end - image.start != read.tokens:
                raise InvalidRequestError(
                    f"image {number} is at the tokens [{image.start}, {image.end}), but the model's "
                    f"processor writes different ones: {read.tokens} placeholders between its markers",
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
        """Refuse placeholders without an image; a policy may sample single ones, without markers."""
        inside = {place for image in images for place in range(image.start, image.end)}
        for place, token in enumerate(token_ids):
            if token != self.placeholder or place in inside:
                continue
            run = token_ids[place - len(before) : place + 2] if before else token_ids[place : place + 2]
            if list(run) == [*before, self.placeholder, self.placeholder]:
                raise InvalidRequestError(
                    f"there are placeholders at token {place} without an image",
                    hint="list the images of the prompt in `images`, in order",
                    field="images",
                )

    def _read(self, data: bytes) -> ReadImage:
        # The processor's two halves: as a whole, it would tokenize the same text again for each image.
        with opened(data) as picture:
            found = self._processed(as_seen(picture))
        inputs = {name: np.asarray(found[name]) for name in _INPUTS if name in found}
        inputs["pixel_values"] = inputs["pixel_values"].astype(np.float32, copy=False)
        if not inputs["pixel_values"].any():
            # transformers would treat it as padding and omit it.
            raise InvalidImageError(
                "an image has a single uniform colour, which the model's processor turns into zeros",
                hint="show another",
            )
        ids = self._ids(str(self._processor.replace_image_token(found, image_idx=0)))
        return ReadImage(
            inputs={name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in inputs.items()},
            token_ids=ids,
            first=ids.index(self.placeholder),
            tokens=ids.count(self.placeholder),
            grid=self._grid(inputs),
        )

    def _processed(self, picture: Any) -> Any:
        try:
            if "Idefics3" in type(self._processor.image_processor).__name__:
                return self._processor.image_processor(
                    [[picture]], return_tensors="np", return_row_col_info=True
                )
            return self._processor.image_processor([picture], return_tensors="np")
        except ValueError as error:  # such as a side too short for its patches
            raise InvalidImageError(
                f"the model's processor cannot use an image of {picture.width} x {picture.height} pixels: "
                f"{error}",
                hint="show an image of another shape",
            ) from error

    def _grid(self, inputs: Mapping[str, npt.NDArray[Any]]) -> tuple[int, int] | None:
        if "image_grid_thw" not in inputs:
            return None
        _, rows, columns = (int(number) for number in inputs["image_grid_thw"][0])
        merged = int(self._processor.image_processor.merge_size)
        return rows // merged, columns // merged

    def _ids(self, text: str) -> tuple[int, ...]:
        with self._lock:
            if text not in self._written:
                self._written[text] = tuple(map(int, self._processor.tokenizer(text)["input_ids"]))
            return self._written[text]
