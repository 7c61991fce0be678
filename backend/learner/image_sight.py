"""Gives a learner's model its images: the processor, the vision tower, and the placeholder rules."""

from __future__ import annotations

from pathlib import Path

from backend.catalog.models import image_rules_of
from backend.learner.causal_lm import CausalLM
from backend.vision.shared import SharedImages
from backend.vision.tower import ImageTower


def let_see(lm: CausalLM, directory: Path, images: SharedImages | None) -> None:
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
