"""A base model on the learner's device, with what all policies on it share.

Invariant: its weights are never trained; outside of a pass no adapter is enabled.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from backend.catalog.models import image_rules_of
from backend.compute.supported_models import Quantization
from backend.learner.activations import (
    MicroBatching,
    limits_on,
    micro_batching,
    room_for_activations,
)
from backend.learner.adapters import AdapterSet
from backend.learner.causal_lm import CausalLM
from backend.vision.shared_caches import SharedImages
from backend.vision.tower import ImageTower

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """The model as it was loaded."""

    path: str
    """A Hugging Face model directory or hub id."""
    lm: CausalLM
    adapters: AdapterSet
    dtype: torch.dtype
    batching: MicroBatching
    images: SharedImages | None
    fingerprint: str
    """Of the weights, as in checkpoints."""
    parameters: int
    """Their number."""

    @classmethod
    def load(
        cls,
        path: str,
        *,
        device: torch.device,
        dtype: torch.dtype,
        micro_batch_tokens: int | None,
        learners: int,
        room: int | None,
        images: SharedImages | None,
        quantized: Quantization = "",
    ) -> LoadedModel:
        """Load a model.

        Args:
            path: A Hugging Face model directory or hub id.
            device: The learner's.
            dtype: Type of the base model, and of computation in full-parameter policies. Trained parameters
                are always float32.
            micro_batch_tokens: Most tokens computed at a time, which limits the memory. None uses as many as
                fit well; if these would be few, layers are computed twice instead.
            learners: Number of learners that share the machine's memory.
            room: Bytes planned for activations; None takes a part of what there is.
            images: Source of image files; None refuses images.
            quantized: The format of the linear layers' weights, if it is not `dtype`.

        Raises:
            UnknownModelError: It cannot be loaded.
        """
        lm = CausalLM.load(path, device=device, dtype=dtype, quantized=quantized)
        _add_image_tower(lm, Path(path), images)
        batching = _fitting(lm, dtype, micro_batch_tokens, learners=learners, room=room)
        if batching.recompute:
            lm.recompute_layers()
        lm.model.requires_grad_(False)
        return cls(
            path=path,
            lm=lm,
            # Merging rounds to the weight's type: precise enough in float32, not in bfloat16 or fewer bits.
            adapters=AdapterSet(lm.model, merge=is_exact(dtype) and not quantized),
            dtype=dtype,
            batching=batching,
            images=images,
            fingerprint=f"{quantized}:{lm.fingerprint()}" if quantized else lm.fingerprint(),
            parameters=sum(p.numel() for p in lm.model.parameters()),
        )

    def separate(self, directory: str, dtype: torch.dtype) -> CausalLM:
        """Load a separate model of the same kind, which sees and recomputes as this one does."""
        own = CausalLM.load(directory, device=self.lm.device, dtype=dtype)
        _add_image_tower(own, Path(self.path), self.images)
        if self.batching.recompute:
            own.recompute_layers()
        return own


def is_exact(dtype: torch.dtype) -> bool:
    """Return whether weights of this type can be trained, and merged with adapters, without much rounding."""
    return dtype in {torch.float32, torch.float64}


def _fitting(
    lm: CausalLM, dtype: torch.dtype, tokens: int | None, *, learners: int, room: int | None
) -> MicroBatching:
    if tokens is not None:
        return MicroBatching(tokens=tokens, recompute=False)
    each = lm.kept_bytes_per_token()
    found = micro_batching(
        each,
        layers=lm.layer_count,
        bytes_between_layers=lm.hidden_size * dtype.itemsize,
        room=room or room_for_activations(lm.device) // learners,
        limits=limits_on(lm.device.type, shares_prefixes=lm.shares_prefixes),
    )
    _log.info(
        "a token needs %d bytes for the backward pass: %d tokens at a time%s",
        each,
        found.tokens,
        ", with layers computed twice" if found.recompute else "",
    )
    return found


def _add_image_tower(lm: CausalLM, directory: Path, images: SharedImages | None) -> None:
    """Enable images for a model that supports them.

    Args:
        lm: The model.
        directory: Directory of the base model, with its processor.
        images: Source of the image files, with the shared caches.

    Raises:
        UnknownModelError: Its processor cannot be used.
    """
    if images is None or not directory.is_dir():
        return
    rules = image_rules_of(directory)
    if rules is not None:
        tower = ImageTower(lm.model, images.reader(directory, rules.placeholder))
        lm.see(tower, rules, images.base_features(directory, lm.device, lm.model.dtype))
