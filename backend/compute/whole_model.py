"""Loads a model of transformers, all of whose weights are in its files.

transformers draws by chance what is missing, and says so in its log only: such a model would be trained, and
answer, with a random output head.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from backend.compute.seeing import sees
from tinkergym.errors import UnknownModelError


def model_class(directory: str | Path) -> Any:
    """Return transformers' class for what predicts the next token with this model, images included."""
    config = AutoConfig.from_pretrained(directory)
    return AutoModelForImageTextToText if sees(config.model_type) else AutoModelForCausalLM


def load_whole(directory: str | Path, **options: Any) -> Any:
    """Return a causal language model, with its vision tower if it is run with images.

    Args:
        directory: A Hugging Face model directory.
        **options: Of `from_pretrained`.

    Raises:
        UnknownModelError: Weights are missing, or have other shapes than its configuration says.
    """
    model, told = model_class(directory).from_pretrained(
        directory, output_loading_info=True, ignore_mismatched_sizes=True, **options
    )
    for name, stored, wanted in told["mismatched_keys"]:
        raise UnknownModelError(
            f"the weights in {directory} are not those of its config.json: {name!r} has the shape "
            f"{list(stored)}, and should have {list(wanted)}",
            hint="put the config.json beside them that they were saved with",
            field="model",
        )
    for name in sorted(told["missing_keys"]):
        raise UnknownModelError(
            f"the weights in {directory} lack {name!r}, which a {type(model).__name__} needs",
            hint="choose the variant with a head that predicts the next token, or download it again",
            field="model",
        )
    return model
