"""A model's vision tower and connector: from images to embedding vectors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from backend.vision.pixels import ImageReader, ReadImage
from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.errors import InvalidRequestError

BASE = "base"
"""The key in `KeptFeatures` for the untrained weights of a base model's tower."""
_MOST_KEPT_BYTES = 256 << 20
_MOST_TOGETHER = 16
_MOST_VALUES = 1 << 24
"""Limit for the elements of images that are computed together."""


class ImageTower:
    """Computes image features with the model's current weights."""

    def __init__(self, model: Any, reader: ImageReader) -> None:
        """Use a transformers model with `get_image_features`."""
        self._model = model
        self.reader = reader
        self._rounds_alike: dict[Hashable, bool] = {}
        """Whether this many images of a shape have the same features together as alone."""

    def features(self, hashes: Sequence[str]) -> list[Tensor]:
        """Return the features of images, [tokens, width] each, in order.

        The width is the decoder's, and again for each of its layers that also receives features.

        An image's features never depend on the images computed with it, so a run that resumes from a
        checkpoint with different caches computes the same bits. If a joint computation rounds differently, as
        on most GPUs, images are computed one by one.

        Raises:
            InvalidRequestError: The tower returns a different number of vectors than an image has tokens.
        """
        images = [self.reader.image(sha256) for sha256 in hashes]
        found: dict[int, Tensor] = {}
        for places in _parts(images):
            vectors = self._together([images[place] for place in places])
            found |= dict(zip(places, vectors, strict=True))
        return [found[place] for place in range(len(images))]

    def _together(self, images: Sequence[ReadImage]) -> list[Tensor]:
        """Compute images of one shape."""
        if len(images) == 1:
            return self._computed(images)
        key = _shape(images[0]), len(images), torch.get_num_threads(), torch.is_grad_enabled()
        alike = self._rounds_alike.get(key)
        if alike:
            return self._computed(images)
        alone = [vectors for image in images for vectors in self._computed([image])]
        if alike is None:
            with torch.no_grad():
                together = self._computed(images)
            self._rounds_alike[key] = all(map(torch.equal, alone, together))
        return alone

    def _computed(self, images: Sequence[ReadImage]) -> list[Tensor]:
        device = self._model.get_input_embeddings().weight.device
        inputs = {
            name: torch.cat([image.inputs[name] for image in images]).to(device) for name in images[0].inputs
        }
        vectors = _side_by_side(self._model.get_image_features(**inputs, return_dict=True))
        wanted = [image.tokens for image in images]
        if len(vectors) != sum(wanted):
            raise InvalidRequestError(
                f"the model produced {len(vectors)} vectors for images with {sum(wanted)} tokens",
                hint="save the processor that belongs to the weights in the model's folder",
                field="model",
            )
        return list(torch.split(vectors, wanted))


def _side_by_side(found: Any) -> Tensor:
    """Return a tower's output, [tokens, width], joined with its output for deeper layers."""
    layers = [found.pooler_output, *(getattr(found, "deepstack_features", None) or ())]
    flat = [layer if isinstance(layer, Tensor) else torch.cat(list(layer)) for layer in layers]
    return torch.cat([layer.reshape(-1, layer.shape[-1]) for layer in flat], dim=-1)


class KeptFeatures:
    """Features of images by the weights that computed them and the image's hash, the most recent ones.

    Thread-safe.
    """

    def __init__(self, most_bytes: int = _MOST_KEPT_BYTES) -> None:
        self._kept: BoundedDict[tuple[Hashable, str], Tensor] = BoundedDict(
            most_bytes, size=lambda features: features.numel() * features.element_size()
        )
        self._lock = threading.Lock()

    def find(self, weights: Hashable, sha256: str) -> Tensor | None:
        """Return what was kept, if it is still here."""
        with self._lock:
            return self._kept.get((weights, sha256))

    def keep(self, weights: Hashable, sha256: str, features: Tensor) -> Tensor:
        """Keep features, and return them; the ones that were not used for longest make room."""
        # A tensor made in inference mode could not be part of a learner's forward pass, and a view would keep
        # all that was computed with it.
        with torch.inference_mode(False):
            features = features.clone()
        with self._lock:
            if (weights, sha256) in self._kept:
                return self._kept[weights, sha256]
            self._kept[weights, sha256] = features
            return features

    def drop_if(self, gone: Callable[[Any], bool]) -> None:
        """Drop features computed by weights for which `gone` returns true."""
        with self._lock:
            for key in [key for key in self._kept if gone(key[0])]:
                del self._kept[key]


def kept_or_computed(
    kept: KeptFeatures,
    weights: Hashable,
    hashes: Sequence[str],
    compute: Callable[[Sequence[str]], list[Tensor]],
) -> dict[str, Tensor]:
    """Return the features of images, by hash; missing ones are computed together, without a gradient."""
    found = {sha256: kept.find(weights, sha256) for sha256 in hashes}
    missing = [sha256 for sha256, features in found.items() if features is None]
    if missing:
        with torch.no_grad():
            computed = compute(missing)
            for sha256, features in zip(missing, computed, strict=True):
                found[sha256] = kept.keep(weights, sha256, features)
    return {sha256: features for sha256, features in found.items() if features is not None}


def embedded(model: Any, ids: Tensor, places: Tensor, vectors: Tensor) -> Tensor:
    """Return [..., hidden], the embeddings of ids with vectors at some positions.

    Args:
        model: The transformers model.
        ids: [N] token ids.
        places: [I] positions of the features.
        vectors: [I, hidden].
    """
    found: Tensor = model.get_input_embeddings()(ids)
    return found.index_copy(0, places, vectors.to(found.dtype)) if len(places) else found


def _parts(images: Sequence[ReadImage]) -> Iterator[list[int]]:
    """Divide images of one shape into groups computed together, with as few sizes as possible."""
    shapes: dict[Hashable, list[int]] = {}
    for place, image in enumerate(images):
        shapes.setdefault(_shape(image), []).append(place)
    for places in shapes.values():
        each = max(tensor.numel() for tensor in images[places[0]].inputs.values())
        size = min(_MOST_TOGETHER, max(1, _MOST_VALUES // each))
        done = 0
        while done < len(places):
            # A power of two, because each further size is first computed twice, see `_together`.
            size = 1 << (min(size, len(places) - done).bit_length() - 1)
            yield places[done : done + size]
            done += size


def _shape(image: ReadImage) -> Hashable:
    return tuple(tuple(tensor.shape) for tensor in image.inputs.values())
