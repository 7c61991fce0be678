"""Loads the processor of a vision-language model, which converts images to numbers and placeholders.

transformers loads the processors of the Qwen-VL family only with torchvision, which their video part needs.
Images do not need it.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers import AutoConfig, AutoImageProcessor, AutoProcessor, AutoTokenizer

from backend.compute.supported_models import has_mrope


def load_processor(directory: Path) -> Any:
    """Return an object with `image_processor`, `tokenizer` and `replace_image_token`, like in transformers.

    Args:
        directory: The model's folder.

    Raises:
        OSError: A file is missing.
        ValueError: A file is invalid.
        ImportError: transformers lacks what the processor needs.
    """
    if not has_mrope(AutoConfig.from_pretrained(directory, local_files_only=True).model_type):
        return AutoProcessor.from_pretrained(directory, local_files_only=True)
    return _WithoutVideos(directory)


class _WithoutVideos:
    """The image part of a processor of the Qwen-VL family."""

    def __init__(self, directory: Path) -> None:
        from transformers import Qwen2VLProcessor

        self.image_processor: Any = AutoImageProcessor.from_pretrained(directory, local_files_only=True)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        config = AutoConfig.from_pretrained(directory, local_files_only=True)
        # The attributes that the processor's own method reads.
        self._own = SimpleNamespace(
            image_processor=self.image_processor,
            image_token=self.tokenizer.convert_ids_to_tokens(config.image_token_id),
        )
        self._write = Qwen2VLProcessor.replace_image_token

    def replace_image_token(self, image_inputs: Any, image_idx: int) -> str:
        """Return the text for an image; it is the same for the whole family."""
        written: str = self._write(self._own, image_inputs, image_idx)
        return written
