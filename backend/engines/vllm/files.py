"""Pass policies to vLLM: adapters as PEFT files, full weights under the model's own names."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor
from transformers import AutoConfig
from transformers.core_model_loading import revert_weight_conversion

from backend.catalog.models import EXPERT
from backend.compute.weights import AdapterWeights, FullWeights, PolicyWeights, weights_sha256
from backend.compute.whole_model import model_class
from backend.engines.vllm.shared_weights import open_weights

_ADAPTER = "adapter_model.safetensors"
_SHARED_EXPERT = re.compile(r"shared\w*\.")
_IN_A_LAYER = re.compile(r"\.\d+\.")
_log = logging.getLogger(__name__)
_MODULE = re.compile(r"base_model\.model\.(.+)\.lora_[AB]\.weight")


def write_adapter(folder: Path, weights: AdapterWeights) -> None:
    """Write an adapter into a new folder that only this user can read."""
    folder.mkdir(mode=0o700, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.tensors.items()}
    # The format does not support one tensor under two names.
    tensors = {
        name: tensor.clone() if _shared(tensor, tensors) else tensor for name, tensor in tensors.items()
    }
    # Not with safetensors' writer, which does not distinguish a full disk from other errors.
    (folder / _ADAPTER).write_bytes(save(tensors))
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": weights.rank,
        "lora_alpha": weights.alpha,
        "use_rslora": weights.rslora,
        "target_modules": adapted_modules(weights),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")


def write_nothing(folder: Path, like: AdapterWeights) -> None:
    """Write an adapter of zeros for one of the layers that `like` changes."""
    module = adapted_modules(like)[0]
    names = [f"base_model.model.{module}.lora_{side}.weight" for side in "AB"]
    down, up = (like.tensors[name] for name in names)  # [rank, in], [out, rank]
    zeros = dict(zip(names, (torch.zeros_like(down[:1]), torch.zeros_like(up[:, :1])), strict=True))
    write_adapter(folder, AdapterWeights(rank=1, alpha=1.0, tensors=zeros))


def read_adapter(folder: Path) -> dict[str, Tensor]:
    """Read the tensors of an adapter."""
    tensors: dict[str, Tensor] = load_file(folder / _ADAPTER)
    return tensors


def hash_of_what_is_read(policy: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the weights that a message of the engine hands over, as this process reads them.

    Args:
        policy: From `PolicyVersion.message`: with `shared` of full weights, or the `path` of an adapter.
    """
    shared = "shared" in policy
    tensors = open_weights(policy["shared"]) if shared else read_adapter(Path(policy["path"]))
    return weights_sha256(FullWeights(tensors=tensors))


def names_to_load(weights: FullWeights, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return which of a policy's tensors are in the model's files, whose `shapes` are as in `misfit`.

    The others are second names of tied weights. Some of vLLM's models cannot load them; the others tie the
    weights themselves.
    """
    return [name for name in weights.tensors if _name_in_files(name, shapes) is not None]


def adapted_modules(weights: AdapterWeights) -> list[str]:
    """Return the paths of the linear layers that an adapter changes."""
    return sorted({found[1] for name in weights.tensors if (found := _MODULE.fullmatch(name))})


def model_shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    """Read the shapes of a model's tensors from its files' headers."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                shapes[name] = tuple(file.get_slice(name).get_shape())
    return shapes


def lora_targets(shapes: Mapping[str, tuple[int, ...]]) -> list[str] | None:
    """Return the last names of layers that adapters may change; None if vLLM need not be told.

    For a mixture of experts vLLM would also prepare the experts for adapters, which uses a different
    implementation (Triton only) and reserves memory for each. No policy adapts experts.

    Args:
        shapes: The result of `model_shapes`.
    """
    mixtures = {found[1] for name in shapes if (found := EXPERT.match(name))}
    if not mixtures:
        return None
    linears = [
        name.removesuffix(".weight")
        for name, shape in shapes.items()
        if len(shape) == 2 and name.endswith(".weight") and _IN_A_LAYER.search(name)
    ]
    return sorted(
        {
            path.rpartition(".")[2]
            for path in linears
            if (block := next((m for m in mixtures if path.startswith(m)), None)) is None
            or _SHARED_EXPERT.match(path, len(block))
        }
    )


def as_in_files(
    weights: PolicyWeights, directory: Path, shapes: Mapping[str, tuple[int, ...]]
) -> PolicyWeights:
    """Return weights under the names in the model's files, if transformers changes those.

    Args:
        weights: The policy; an adapter is returned as it is.
        directory: The model's directory.
        shapes: The result of `model_shapes`.
    """
    if isinstance(weights, AdapterWeights) or not weights.tensors or misfit(weights, shapes) is None:
        return weights
    try:
        with torch.device("meta"):
            model = model_class(directory).from_config(AutoConfig.from_pretrained(directory))
        return FullWeights(tensors=revert_weight_conversion(model, dict(weights.tensors)))
    except Exception as error:
        # The caller reports what does not fit.
        _log.info("weights keep the model's names: %s: %s", type(error).__name__, error)
        return weights


def misfit(weights: PolicyWeights, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return which part of a policy does not fit the model; vLLM itself ignores unknown tensors.

    Args:
        weights: The policy.
        shapes: The result of `model_shapes`. A model's files may omit the first part of a name.
    """
    if isinstance(weights, AdapterWeights):
        for module in adapted_modules(weights):
            name = f"{module}.weight"
            shape = shapes.get(name, shapes.get(name.partition(".")[2]))
            sides = [weights.tensors.get(f"base_model.model.{module}.lora_{side}.weight") for side in "AB"]
            ends = [side.shape[end] for side, end in zip(sides, (1, 0), strict=True) if side is not None]
            # Sorted: some models keep the weights of a linear layer transposed.
            if shape is None or sorted(ends) != sorted(shape):
                return module
        return None
    given: dict[str, Tensor] = {}
    others = []
    for name, tensor in weights.tensors.items():
        in_files = _name_in_files(name, shapes)
        if in_files is None:
            others.append(name)
        # Two tensors for one of the model: which of them vLLM takes would depend on their order.
        elif in_files in given:
            return name
        else:
            given[in_files] = tensor
    for name, shape in shapes.items():
        if name not in given or tuple(given[name].shape) != shape:
            return name
    return next((name for name in others if not _is_one_of(weights.tensors[name], given.values())), None)


def _name_in_files(name: str, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    without_first_part = name.partition(".")[2]
    return name if name in shapes else without_first_part if without_first_part in shapes else None


def _is_one_of(tensor: Tensor, known: Iterable[Tensor]) -> bool:
    """Return whether a tensor is a second name or a copy of a known one."""
    alike = [each for each in known if each.shape == tensor.shape and each.dtype == tensor.dtype]
    # Pointers first: to compare the values of an embedding takes long.
    return any(each.data_ptr() == tensor.data_ptr() for each in alike) or any(
        torch.equal(each, tensor) for each in alike
    )


def _shared(tensor: Tensor, tensors: dict[str, Tensor]) -> bool:
    storage = tensor.untyped_storage().data_ptr()
    return sum(other.untyped_storage().data_ptr() == storage for other in tensors.values()) > 1
