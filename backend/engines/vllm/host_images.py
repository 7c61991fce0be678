"""Images in vLLM's process: read from files, processed once, and inserted into prompts.

Only imported by the host, and only for models with image support. A prompt contains the tokens that the
learner will receive, with all placeholders expanded. vLLM normally expects one placeholder per image, which
it searches for and expands itself; it would mistake a sampled placeholder for an image.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vllm.inputs.engine import mm_input
from vllm.multimodal.inputs import MultiModalKwargsItems

from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.images.stored_images import as_seen, opened

Message = dict[str, Any]
_MOST_KEPT_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class _Processed:
    """The output of vLLM's processor for one image."""

    item: Any
    """The model's inputs."""
    token_ids: list[int]
    """The tokens in the prompt."""
    place: Any
    """Positions of the placeholders among these tokens."""
    bytes: int


class HostImages:
    """Builds the input of a request with images."""

    def __init__(self, engine: Any) -> None:
        """Use an engine's processor."""
        self._engine = engine
        self._known: BoundedDict[str, _Processed] = BoundedDict(_MOST_KEPT_BYTES, size=lambda one: one.bytes)

    async def input(self, message: Message) -> Any:
        """Return the engine's input.

        Raises:
            RuntimeError: vLLM represents an image by different tokens than the request.
        """
        prompt: list[int] = message["prompt"]
        shown = [await self._processed(image) for image in message["images"]]
        places = []
        for image, one in zip(message["images"], shown, strict=True):
            begin = image["begin"]
            if prompt[begin : image["end"]] != one.token_ids:
                raise RuntimeError(
                    f"vLLM represents the image {image['sha256']} by different tokens than the request at "
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
            with opened(Path(image["path"]).read_bytes()) as picture:
                shown = as_seen(picture)
            asked = {
                "prompt_token_ids": [image["placeholder"]],
                "multi_modal_data": {"image": [shown]},
                "multi_modal_uuids": {"image": [sha256]},
            }
            (found,) = await self._engine.renderer.render_cmpl_async([asked])
            (item,) = found["mm_kwargs"]["image"]
            (place,) = found["mm_placeholders"]["image"]
            self._known[sha256] = _Processed(item, list(found["prompt_token_ids"]), place, _size(item))
        return self._known[sha256]


def _size(item: Any) -> int:
    return sum(getattr(element.data, "nbytes", 0) for element in item.values())
