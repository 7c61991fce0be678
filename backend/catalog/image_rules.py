"""How a model's processor represents images in a prompt, read from its files.

Of the processors in transformers, this module supports those whose rule a client can apply without the
model's code: the number of tokens per image is fixed or determined by its size.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend.compute.supported_models import has_mrope, sees
from tinkergym.errors import UnknownModelError
from tinkergym.schema.views import ImageRules, ImageSizing

_AROUND, _WHOLE = "<fake_token_around_image>", "<global-img>"
_QWEN_SIZES = ("patch_size", "merge_size")


def image_rules(
    config: Mapping[str, Any], processor: Mapping[str, Any], token_ids: Mapping[str, int], directory: Path
) -> ImageRules | None:
    """Return the rules of a model's processor; None for a text-only model.

    Args:
        config: `config.json`.
        processor: `processor_config.json`, or an older model's `preprocessor_config.json` under
            `image_processor`; empty if there is neither.
        token_ids: The tokenizer's token ids, by text.
        directory: The model's folder, for messages.

    Raises:
        UnknownModelError: Its processor splits images, or its files are incomplete.
    """
    if not sees(config.get("model_type")):
        return None
    settings = processor.get("image_processor") or {}
    if not isinstance(config.get("image_token_id"), int):
        raise _lacking(directory, "image_token_id")
    if has_mrope(config.get("model_type")):
        return _by_size(config, settings, directory)
    # Idefics3's own default is to cut images.
    if settings.get("do_image_splitting", True):
        raise UnknownModelError(
            f"the processor in {str(directory)!r} splits images, which is not supported",
            hint="turn it off with transformers: processor = AutoProcessor.from_pretrained(folder), "
            "processor.image_processor.do_image_splitting = False, processor.save_pretrained(folder)",
            field="model",
        )
    tokens = processor.get("image_seq_len")
    missing = [text for text in (_AROUND, _WHOLE) if text not in token_ids]
    if not isinstance(tokens, int) or missing:
        raise _lacking(directory, missing[0] if missing else "image_seq_len")
    return ImageRules(
        placeholder=config["image_token_id"],
        tokens=tokens,
        before=[token_ids[_AROUND], token_ids[_WHOLE]],
        after=[token_ids[_AROUND]],
    )


def _by_size(config: Mapping[str, Any], settings: Mapping[str, Any], directory: Path) -> ImageRules:
    """Return the rule of the Qwen-VL family, whose template writes the markers itself."""
    size = settings.get("size") or {}
    least = settings.get("min_pixels") or size.get("shortest_edge")
    most = settings.get("max_pixels") or size.get("longest_edge")
    missing = [name for name in _QWEN_SIZES if not isinstance(settings.get(name), int)]
    if missing or not isinstance(least, int) or not isinstance(most, int):
        raise _lacking(directory, missing[0] if missing else "size")
    sizing = ImageSizing(
        factor=settings["patch_size"] * settings["merge_size"], least_pixels=least, most_pixels=most
    )
    return ImageRules(placeholder=config["image_token_id"], tokens=0, by_size=sizing)


def _lacking(directory: Path, name: str) -> UnknownModelError:
    return UnknownModelError(
        f"the model in {str(directory)!r} does not define how images are represented: {name} is missing",
        hint="save its processor in the model's folder, with AutoProcessor and save_pretrained",
        field="model",
    )
