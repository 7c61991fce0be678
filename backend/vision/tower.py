"""A model's vision tower and connector: images in, the vectors that stand for them out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from backend.vision.pixels import ImageReader, ReadImage
from tinkergym.errors import InvalidRequestError

_MOST_KEPT_BYTES = 256 << 20


class ImageTower:
    """Computes image features with whatever weights are in the model."""

    def __init__(self, model: Any, reader: ImageReader) -> None:
        """Use a model of transformers that has `get_image_features`."""
        self._model = model
        self.reader = reader

    def features(self, sha256: str) -> Tensor:
        """Return an image's features, [tokens, hidden].

        One image at a time: in a batch of others its last bits would depend on them.

        Raises:
            InvalidRequestError: The tower returns another number of vectors than the image has tokens.
        """
        return self._computed(self.reader.image(sha256))

    def _computed(self, image: ReadImage) -> Tensor:
        device = self._model.get_input_embeddings().weight.device
        found: Tensor = self._model.get_image_features(
            pixel_values=image.values.to(device), pixel_attention_mask=image.mask.to(device), return_dict=True
        ).pooler_output
        vectors = found.reshape(-1, found.shape[-1])
        if len(vectors) != image.tokens:
            # transformers takes an image whose values are all exactly 0 for padding, for one.
            raise InvalidRequestError(
                f"the model makes {len(vectors)} vectors of an image that has {image.tokens} tokens",
                hint="the image may be of one even colour; show another",
                field="images",
            )
        return vectors


class KeptFeatures:
    """Features of images by what computed them and the image's hash; the ones used last, up to a size."""

    def __init__(self, most_bytes: int = _MOST_KEPT_BYTES) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[tuple[Hashable, str], Tensor] = OrderedDict()

    def find(self, weights: Hashable, sha256: str) -> Tensor | None:
        """Return what was kept, if it is still here."""
        found = self._kept.get((weights, sha256))
        if found is not None:
            self._kept.move_to_end((weights, sha256))
        return found

    def keep(self, weights: Hashable, sha256: str, features: Tensor) -> None:
        """Keep features; the ones that were not used for longest make room."""
        self._kept[weights, sha256] = features
        self._bytes += features.numel() * features.element_size()
        while self._bytes > self._most and len(self._kept) > 1:
            old = self._kept.popitem(last=False)[1]
            self._bytes -= old.numel() * old.element_size()

    def drop(self, gone: Sequence[Hashable]) -> None:
        """Forget what these weights computed."""
        for key in [key for key in self._kept if key[0] in gone]:
            old = self._kept.pop(key)
            self._bytes -= old.numel() * old.element_size()

    def weights(self) -> set[Hashable]:
        """Return whose features are kept."""
        return {weights for weights, _ in self._kept}


def embedded(model: Any, ids: Tensor, places: Tensor, vectors: Tensor) -> Tensor:
    """Return [..., hidden], the embeddings of ids with vectors in some places.

    Args:
        model: Of transformers.
        ids: [N] token ids.
        places: [I] where features stand.
        vectors: [I, hidden].
    """
    found: Tensor = model.get_input_embeddings()(ids)
    return found.index_copy(0, places, vectors.to(found.dtype)) if len(places) else found


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return the features of several images one behind the other."""
    return torch.cat(list(parts))
