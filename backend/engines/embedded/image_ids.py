"""Images in packed batches: their tokens have ids of their own, and their vectors come from the vision tower.

The placeholder's id is the same for every image, and so would be the prompts of two different ones. Here each
image's tokens get ids that no vocabulary has and no other image gets. So all that compares prompts by their
ids, the caches of sessions and of equal prompts, tells images apart by their content.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backend.engines.embedded.packed_batch import Indices
from backend.engines.embedded.policy_shelf import AdapterSegment, LoadedPolicy, PolicyShelf
from backend.vision.pixels import ImageReader
from backend.vision.tower import ImageTower, KeptFeatures
from tinkergym.errors import TinkerGymError
from tinkergym.schema.sampling import SampleRequest

IMAGE_IDS = 1 << 62
"""The first id that stands for a part of an image."""
_PLACES = 1 << 20
"""Ids per image."""
_MOST_NUMBERED = 100_000
"""Images that keep their number. One that is forgotten gets another; what a cache has of it is not found."""


class ShownImages:
    """Which images have which ids, and their features under each policy."""

    def __init__(self, model: Any, shelf: PolicyShelf, reader: ImageReader) -> None:
        """Use the engine's model."""
        self._model, self._shelf, self._reader = model, shelf, reader
        self._tower = ImageTower(model, reader)
        self._kept = KeptFeatures()
        self._lock = threading.Lock()
        self._numbers: OrderedDict[str, int] = OrderedDict()
        self._hashes: dict[int, str] = {}
        self._next = 0
        decoder = {id(parameter) for parameter in model.get_decoder().parameters()}
        decoder |= {id(parameter) for parameter in model.get_output_embeddings().parameters()}
        self._seeing = {
            name.rpartition(".")[0] for name, p in model.named_parameters() if id(p) not in decoder
        }
        """Paths of the modules that make an image's features."""
        for path in self._seeing & set(shelf.sites):
            # They run for one policy at a time, so an adapter on them is in nobody's way.
            shelf.sites[path].mixable = True

    def refusal(self, request: SampleRequest) -> TinkerGymError | None:
        """Return why a request's images cannot be shown; None if they can. Reads them."""
        try:
            self._reader.check(request.prompt_ids, request.images)
        except TinkerGymError as error:
            return error
        return None

    def placed(self, request: SampleRequest) -> list[int]:
        """Return the prompt with each image's own ids in the place of its placeholders."""
        ids = list(request.prompt_ids)
        for image in request.images:
            begin = IMAGE_IDS + self._number(image.sha256) * _PLACES
            ids[image.start : image.end] = range(begin, begin + image.end - image.start)
        return ids

    def as_placeholders(self, ids: list[int]) -> list[int]:
        """Return ids that a vocabulary has."""
        return [token if token < IMAGE_IDS else self._reader.placeholder for token in ids]

    def embedded(self, ids: Indices, segments: Sequence[AdapterSegment]) -> Tensor:
        """Return [tokens, hidden]: what the decoder is given for a packed batch. Binds what it needs."""
        found = torch.empty(0)
        for segment in segments:
            own = ids[segment.tokens]
            shown = np.flatnonzero(own >= IMAGE_IDS)
            features = {
                int(number): self._features(segment.policy, self._hashes[int(number)])
                for number in np.unique((own[shown] - IMAGE_IDS) // _PLACES)
            }
            # The embedding is the policy's own, too, if it is trained whole.
            self._bind(segment.policy)
            part = self._model.get_input_embeddings()(
                torch.from_numpy(np.where(own < IMAGE_IDS, own, 0)).to(self._device)
            )
            for number, vectors in features.items():
                at = shown[(own[shown] - IMAGE_IDS) // _PLACES == number]
                rows = (own[at] - IMAGE_IDS) % _PLACES
                part[torch.from_numpy(at).to(self._device)] = vectors[torch.from_numpy(rows).to(self._device)]
            found = part if not len(found) else torch.cat([found, part])
        return found

    @property
    def _device(self) -> torch.device:
        device: torch.device = self._model.get_input_embeddings().weight.device
        return device

    def _features(self, policy: LoadedPolicy, sha256: str) -> Tensor:
        weights = policy if self._sees_otherwise(policy) else self._shelf.base
        found = self._kept.find(weights, sha256)
        if found is None:
            self._kept.drop([one for one in self._kept.weights() if not getattr(one, "live", True)])
            self._bind(weights)
            found = self._tower.features(sha256)
            self._kept.keep(weights, sha256, found)
        return found

    def _sees_otherwise(self, policy: LoadedPolicy) -> bool:
        """Whether the policy's features are not those of the base model."""
        if policy is self._shelf.base:
            return False
        return not policy.factors or not self._seeing.isdisjoint(policy.factors)

    def _bind(self, policy: LoadedPolicy) -> None:
        self._shelf.bind([AdapterSegment(policy, slice(0, 0), slice(0, 0))])

    def _number(self, sha256: str) -> int:
        with self._lock:
            number = self._numbers.get(sha256)
            if number is None:
                number, self._next = self._next, self._next + 1
                self._hashes[number] = sha256
                while len(self._numbers) >= _MOST_NUMBERED:
                    del self._hashes[self._numbers.popitem(last=False)[1]]
            self._numbers[sha256] = number
            self._numbers.move_to_end(sha256)
            return number
