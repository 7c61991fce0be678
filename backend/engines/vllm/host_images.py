"""Images in vLLM's process: read from files, processed once, and put where their tokens stand in a prompt.

Imported by the host only, and only for models that see. A prompt comes with the tokens that the learner will
be given, every placeholder written out. vLLM's own way would be one placeholder per image, which it looks for
in the prompt and writes out itself; a placeholder that the policy sampled would be taken for an image.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image
from vllm.inputs.engine import mm_input
from vllm.multimodal.inputs import MultiModalKwargsItems

Message = dict[str, Any]
_MOST_KEPT_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class _Processed:
    """What vLLM's processor makes of an image by itself."""

    item: Any
    """What the model is given."""
    token_ids: list[int]
    """What is written into a prompt."""
    place: Any
    """Where in those its placeholders stand."""
    bytes: int


class HostImages:
    """Makes the input of a request that shows images."""

    def __init__(self, engine: Any) -> None:
        """Use an engine's processor."""
        self._engine = engine
        self._known: OrderedDict[str, _Processed] = OrderedDict()

    async def input(self, message: Message) -> Any:
        """Return what the engine is asked.

        Raises:
            RuntimeError: vLLM writes an image as other tokens than the request has.
        """
        prompt: list[int] = message["prompt"]
        shown = [await self._processed(image) for image in message["images"]]
        places = []
        for image, one in zip(message["images"], shown, strict=True):
            begin = image["begin"]
            if prompt[begin : image["end"]] != one.token_ids:
                raise RuntimeError(
                    f"vLLM writes the image {image['sha256']} as other tokens than the request has at "
                    f"[{begin}, {image['end']})"
                )
            places.append(replace(one.place, offset=begin + one.place.offset))
        return mm_input(
            prompt,
            mm_kwargs=MultiModalKwargsItems({"image": [one.item for one in shown]}),
            mm_hashes={"image": [image["sha256"] for image in message["images"]]},
            mm_placeholders={"image": places},
            cache_salt=message["salt"],
        )

    async def _processed(self, image: Message) -> _Processed:
        sha256: str = image["sha256"]
        if sha256 not in self._known:
            with Image.open(io.BytesIO(Path(image["path"]).read_bytes())) as picture:
                shown = picture.convert("RGB")
            asked = {
                "prompt_token_ids": [image["placeholder"]],
                "multi_modal_data": {"image": [shown]},
                "multi_modal_uuids": {"image": [sha256]},
            }
            (found,) = await self._engine.renderer.render_cmpl_async([asked])
            (item,) = found["mm_kwargs"]["image"]
            (place,) = found["mm_placeholders"]["image"]
            self._known[sha256] = _Processed(item, list(found["prompt_token_ids"]), place, _size(item))
            while len(self._known) > 1 and sum(one.bytes for one in self._known.values()) > _MOST_KEPT_BYTES:
                self._known.popitem(last=False)
        self._known.move_to_end(sha256)
        return self._known[sha256]


def _size(item: Any) -> int:
    return sum(getattr(element.data, "nbytes", 0) for element in item.values())
