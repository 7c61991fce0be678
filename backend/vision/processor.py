"""Loads the processor of a vision-language model: how images become numbers, and what is written for them.

transformers loads the processors of the Qwen-VL family only with torchvision, which their video half needs.
Their images need none of it.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers import AutoConfig, AutoImageProcessor, AutoProcessor, AutoTokenizer

from backend.compute.seeing import has_mrope


def load_processor(directory: Path) -> Any:
    """Return what has `image_processor`, `tokenizer` and `replace_image_token`, as transformers' have.

    Args:
        directory: Of the model.

    Raises:
        OSError: A file is missing.
        ValueError: A file is wrong.
        ImportError: transformers lacks what the processor needs.
    """
    if not has_mrope(AutoConfig.from_pretrained(directory, local_files_only=True).model_type):
        return AutoProcessor.from_pretrained(directory, local_files_only=True)
    return _WithoutVideos(directory)


class _WithoutVideos:
    """The image half of a processor of the Qwen-VL family."""

    def __init__(self, directory: Path) -> None:
        from transformers import Qwen2VLProcessor

        self.image_processor: Any = AutoImageProcessor.from_pretrained(directory, local_files_only=True)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        config = AutoConfig.from_pretrained(directory, local_files_only=True)
        # What the processor's own method reads.
        self._own = SimpleNamespace(
            image_processor=self.image_processor,
            image_token=self.tokenizer.convert_ids_to_tokens(config.image_token_id),
        )
        self._write = Qwen2VLProcessor.replace_image_token

    def replace_image_token(self, image_inputs: Any, image_idx: int) -> str:
        """Return what the processor writes for an image; the same for the whole family."""
        written: str = self._write(self._own, image_inputs, image_idx)
        return written
