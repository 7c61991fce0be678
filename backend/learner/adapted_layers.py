"""Which layers of a model get an adapter: those that every engine supports, and PEFT can load again.

These are the plain linear layers of the decoder. In a mixture of experts neither the router nor the experts
are included: in transformers both are tensors of special layers, which PEFT adapts in a different format.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import peft
from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
from torch import nn
from transformers.pytorch_utils import Conv1D

from backend.compute.layer_names import names, no_such_layer
from backend.compute.quantized_weights import is_quantized
from backend.compute.supported_models import sees

_TAKEN_APART = frozenset({"kv_b_proj"})
"""Layers of attention over compressed keys and values (DeepSeek): vLLM multiplies them into other weights
while loading the model, and ignores adapters on them."""
_SHARED_EXPERT = re.compile(r"shared\w*\.")


def adapted_layers(model: Any) -> list[str]:
    """Return the paths of the layers that an adapter of this transformers model changes."""
    decoder, head = set(model.get_decoder().modules()), model.get_output_embeddings()
    mixtures = [
        f"{path}." for path, m in model.named_modules() if isinstance(getattr(m, "experts", None), nn.Module)
    ]
    paths = [
        path
        for path, module in model.named_modules()
        # Subclasses of linear layers may compute something else, as some routers do.
        if type(module) in {nn.Linear, Conv1D} or is_quantized(module)
        if module in decoder and module is not head
        if _last(path) not in _TAKEN_APART and not any(_is_routed(path, mixture) for mixture in mixtures)
    ]
    names = {_last(path) for path in paths}
    own = {name for name in names if _peft_takes_as_it_is(name, model)}
    return [path for path in paths if _last(path) in own]


def chosen_layers(paths: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return the layers that match any of the patterns; without patterns all.

    Raises:
        InvalidRequestError: A pattern matches none; the message lists the available names.
    """
    if not patterns:
        return list(paths)
    idle = next((pattern for pattern in patterns if not any(names(pattern, path) for path in paths)), None)
    if idle is not None:
        raise no_such_layer(idle, paths)
    return [path for path in paths if any(names(pattern, path) for pattern in patterns)]


def vision_layers(model: Any) -> list[str]:
    """Return the paths of the plain linear layers of a model's vision tower and connector, if any."""
    if not sees(model.config.model_type):
        return []
    decoder, head = set(model.get_decoder().modules()), model.get_output_embeddings()
    return [
        path
        for path, module in model.named_modules()
        if type(module) is nn.Linear and module not in decoder and module is not head
    ]


def _is_routed(path: str, mixture: str) -> bool:
    return path.startswith(mixture) and not _SHARED_EXPERT.match(path.removeprefix(mixture))


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _peft_takes_as_it_is(name: str, model: Any) -> bool:
    """Return whether PEFT does not treat the name as an expert's, like `gate_proj` in some families.

    There also a dense layer of this name cannot be adapted: PEFT would adapt the experts in its place.
    """
    config = peft.LoraConfig(target_modules=[name])
    try:
        convert_peft_config_for_transformers(config, model, None)
    except ValueError:  # such experts always come together
        return False
    return set(config.target_modules or ()) == {name}
