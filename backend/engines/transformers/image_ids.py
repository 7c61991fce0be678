"""Images in packed batches: they get unique token ids, and their vectors come from the vision tower.

The placeholder's id is the same for every image, so prompts with different images would look equal. Each
image's tokens therefore get ids outside the vocabulary, unique to the image, so code that compares prompts by
ids (the caches of sessions and of equal prompts) distinguishes images by content.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backend.engines.transformers.loaded_policies import AdapterSegment, LoadedPolicies, LoadedPolicy
from backend.engines.transformers.packed_batch import Indices
from backend.vision.pixels import ImageReader
from backend.vision.positions import mrope_positions
from backend.vision.tower import BASE, ImageTower, KeptFeatures, kept_or_computed
from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.errors import TinkerGymError
from tinkergym.schema.sampling import SampleRequest

IMAGE_IDS = 1 << 62
"""The first id for image tokens."""
_PLACES = 1 << 20
"""Ids per image."""
_MOST_NUMBERED = 100_000
"""Images that keep their number. An evicted image gets a new number, so its cached tokens are not found
again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A decoder's inputs for a packed batch with images: N tokens, I of them image tokens."""

    embeddings: Tensor
    """[N, hidden]"""
    places: Tensor
    """[I], ascending: the indices of these tokens."""
    deeper: list[Tensor]
    """[I, hidden] for each of the first layers, added to its output; usually empty."""


class ShownImages:
    """The images' ids, and their features under each policy."""

    def __init__(
        self, model: Any, policies: LoadedPolicies, reader: ImageReader, of_base: KeptFeatures | None = None
    ) -> None:
        """Use the engine's model.

        Args:
            model: A model from transformers.
            policies: The model's policies.
            reader: Reads images.
            of_base: Shared features of the base model; None shares nothing.
        """
        self._model, self._policies, self._reader = model, policies, reader
        self._tower = ImageTower(model, reader)
        self._of_base = of_base or KeptFeatures()
        self._own = KeptFeatures()
        """Features by policy, for policies with their own tower."""
        self._lock = threading.Lock()
        self._numbers: BoundedDict[str, int] = BoundedDict(
            _MOST_NUMBERED, dropped=lambda _, number: self._hashes.pop(number)
        )
        self._hashes: dict[int, str] = {}
        self._next = 0
        decoder = {id(parameter) for parameter in model.get_decoder().parameters()}
        decoder |= {id(parameter) for parameter in model.get_output_embeddings().parameters()}
        self._seeing = {
            name.rpartition(".")[0] for name, p in model.named_parameters() if id(p) not in decoder
        }
        """Paths of the modules that compute an image's features."""
        for path in self._seeing & set(policies.sites):
            # They run for one policy at a time, so an adapter on them does not affect others.
            policies.sites[path].mixable = True

    def refusal(self, request: SampleRequest) -> TinkerGymError | None:
        """Read a request's images; return why they cannot be used, or None."""
        try:
            self._reader.check(request.prompt_ids, request.images)
        except TinkerGymError as error:
            return error
        return None

    def placed(self, request: SampleRequest) -> list[int]:
        """Return the prompt with each image's own ids instead of the placeholders."""
        ids = list(request.prompt_ids)
        for image in request.images:
            begin = IMAGE_IDS + self._number(image.sha256) * _PLACES
            ids[image.start : image.end] = range(begin, begin + image.end - image.start)
        return ids

    def as_placeholders(self, ids: list[int]) -> list[int]:
        """Return the ids mapped into the vocabulary."""
        return [token if token < IMAGE_IDS else self._reader.placeholder for token in ids]

    def positions(self, request: SampleRequest, start: int, end: int) -> Indices:
        """Return [3, end - start], positions of tokens of a request's sequence for `has_mrope` models."""
        return mrope_positions(start, end, request.images, self._reader.grid)

    def embedded(self, ids: Indices, segments: Sequence[AdapterSegment]) -> Shown:
        """Return the decoder's inputs for a packed batch. Binds the needed policies."""
        parts, places, deeper = [], [], []
        hidden = int(self._model.get_input_embeddings().weight.shape[1])
        for segment in segments:
            own = ids[segment.tokens]  # [N of the segment]
            shown = np.flatnonzero(own >= IMAGE_IDS)
            numbers, which = np.unique((own[shown] - IMAGE_IDS) // _PLACES, return_inverse=True)
            features = self._features(segment.policy, [self._hashes[number] for number in numbers.tolist()])
            # The embedding is the policy's own, too, if it is trained whole.
            self._bind(segment.policy)
            # Tokens of images get the row of some word first; their features replace it.
            part = self._model.get_input_embeddings()(
                torch.from_numpy(np.where(own < IMAGE_IDS, own, 0)).to(self._device)
            )
            if features:
                begins = np.cumsum([0, *(len(vectors) for vectors in features)])
                rows = begins[which] + (own[shown] - IMAGE_IDS) % _PLACES
                vectors = torch.cat(features)[torch.from_numpy(rows).to(self._device)]  # [I, hidden * layers]
                first, *more = torch.split(vectors, hidden, dim=-1)
                part = part.index_copy(0, torch.from_numpy(shown).to(self._device), first.to(part.dtype))
                places.append(shown + segment.tokens.start)
                deeper.append(more)
            parts.append(part)
        return Shown(
            embeddings=torch.cat(parts),
            places=torch.from_numpy(np.concatenate(places)).to(self._device),
            deeper=[torch.cat(list(layer)) for layer in zip(*deeper, strict=True)],
        )

    @property
    def _device(self) -> torch.device:
        device: torch.device = self._model.get_input_embeddings().weight.device
        return device

    def _features(self, policy: LoadedPolicy, hashes: Sequence[str]) -> list[Tensor]:
        if not hashes:
            return []
        key: Hashable
        if self._sees_otherwise(policy):
            weights, kept, key = policy, self._own, policy
            kept.drop_if(lambda one: not one.live)
        else:
            weights, kept, key = self._policies.base, self._of_base, BASE

        def compute(missing: Sequence[str]) -> list[Tensor]:
            self._bind(weights)
            return self._tower.features(missing)

        found = kept_or_computed(kept, key, hashes, compute)
        return [found[sha256] for sha256 in hashes]

    def _sees_otherwise(self, policy: LoadedPolicy) -> bool:
        """Return whether the policy's features differ from the base model's."""
        if policy is self._policies.base:
            return False
        return not policy.factors or not self._seeing.isdisjoint(policy.factors)

    def _bind(self, policy: LoadedPolicy) -> None:
        self._policies.bind([AdapterSegment(policy, slice(0, 0), slice(0, 0))])

    def _number(self, sha256: str) -> int:
        with self._lock:
            number = self._numbers.get(sha256)
            if number is None:
                number, self._next = self._next, self._next + 1
                self._hashes[number] = sha256
                self._numbers[sha256] = number
            return number
