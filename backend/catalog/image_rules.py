"""How a model's processor writes images into a prompt, read from its files.

Of the processors that transformers has, those are known here whose rule is the same for every image, so that
a client can apply it without the model's code.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend.compute.seeing import sees
from tinkergym.errors import UnknownModelError
from tinkergym.schema.views import ImageRules

_AROUND, _WHOLE = "<fake_token_around_image>", "<global-img>"


def image_rules(
    config: Mapping[str, Any], processor: Mapping[str, Any], token_ids: Mapping[str, int], directory: Path
) -> ImageRules | None:
    """Return the rules of a model's processor; None for a model that takes text only.

    Args:
        config: `config.json`.
        processor: `processor_config.json`; empty if there is none.
        token_ids: The tokenizer's, by text.
        directory: For messages.

    Raises:
        UnknownModelError: Its processor cuts images into parts, or its files lack something.
    """
    if not sees(config.get("model_type")):
        return None
    settings = processor.get("image_processor") or {}
    # Idefics3's own default is to cut images.
    if settings.get("do_image_splitting", True):
        raise UnknownModelError(
            f"the processor in {str(directory)!r} cuts images into parts, which is not supported",
            hint='set "do_image_splitting": false in its processor_config.json',
            field="model",
        )
    tokens = processor.get("image_seq_len")
    missing = [text for text in (_AROUND, _WHOLE) if text not in token_ids]
    if not isinstance(tokens, int) or missing or not isinstance(config.get("image_token_id"), int):
        lacking = missing[0] if missing else "image_seq_len or image_token_id"
        raise UnknownModelError(
            f"the model in {str(directory)!r} does not say how images are written: {lacking} is missing",
            hint="save its processor beside the weights, with AutoProcessor and save_pretrained",
            field="model",
        )
    return ImageRules(
        placeholder=config["image_token_id"],
        tokens=tokens,
        before=[token_ids[_AROUND], token_ids[_WHOLE]],
        after=[token_ids[_AROUND]],
    )
