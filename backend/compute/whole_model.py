"""Loads a transformers model whose weights are all in its files.

transformers initializes missing weights randomly, and only logs it: such a model would be trained and sampled
with a random output head.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from backend.compute.supported_models import sees
from tinkergym.errors import UnknownModelError


def model_class(directory: str | Path) -> Any:
    """Return transformers' class that predicts the next token with this model, images included."""
    config = AutoConfig.from_pretrained(directory)
    return AutoModelForImageTextToText if sees(config.model_type) else AutoModelForCausalLM


def load_whole(directory: str | Path, **options: Any) -> Any:
    """Return a causal language model, with its vision tower if images are supported.

    Args:
        directory: A Hugging Face model directory.
        **options: Options of `from_pretrained`.

    Raises:
        UnknownModelError: Weights are missing, or their shapes do not match its configuration.
    """
    model, told = model_class(directory).from_pretrained(
        directory, output_loading_info=True, ignore_mismatched_sizes=True, **options
    )
    for name, stored, wanted in told["mismatched_keys"]:
        raise UnknownModelError(
            f"the weights in {directory} do not match its config.json: {name!r} has the shape "
            f"{list(stored)}, and should have {list(wanted)}",
            hint="use the config.json with which they were saved",
            field="model",
        )
    for name in sorted(told["missing_keys"]):
        raise UnknownModelError(
            f"the weights in {directory} lack {name!r}, which a {type(model).__name__} needs",
            hint="choose the variant with a head that predicts the next token, or download it again",
            field="model",
        )
    return model
