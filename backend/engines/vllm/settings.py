"""Translate the operator's vLLM settings to vLLM's arguments and environment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from backend.engines.vllm.files import lora_targets
from backend.settings.served_models import VLLM_MOST_IMAGES, DType, VllmSettings

_LEAST_IMAGE_TOKENS = 16


def sleep_mode(settings: VllmSettings, device: str) -> Literal["offload", "end"]:
    """What sleeping means on this device."""
    if settings.sleep != "auto":
        return settings.sleep
    return "end" if device == "cpu" else "offload"


def has_tokenizer(model_directory: Path) -> bool:
    """Return whether vLLM can know the text of the model's tokens."""
    return (model_directory / "tokenizer.json").is_file()


def engine_arguments(
    settings: VllmSettings,
    model_directory: Path,
    context_length: int,
    device: str,
    dtype: DType = "float32",
    *,
    shapes: Mapping[str, tuple[int, ...]],
    sees: bool = False,
    ranks: int = 1,
) -> dict[str, Any]:
    """Return vLLM's engine arguments as JSON.

    Args:
        settings: The operator's settings.
        model_directory: The model's folder.
        context_length: Most tokens of prompt and completion together.
        device: `cpu`, `cuda`, ...
        dtype: Type of weights and cache.
        shapes: The result of `model_shapes`.
        sees: Whether prompts contain images.
        ranks: Devices that divide the model between them.
    """
    memory: dict[str, Any] = (
        {"kv_cache_memory_bytes": settings.cache_bytes, "block_size": 32}
        if device == "cpu"
        else {"gpu_memory_utilization": settings.gpu_memory}
    )
    known = has_tokenizer(model_directory)
    return {
        "model": str(model_directory),
        # Input and output are token ids. The tokens' texts are only needed for structured output.
        "tokenizer": str(model_directory) if known else None,
        "skip_tokenizer_init": not known,
        # This backend accepts stop token ids; with fallback another would be tried for what it refuses.
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
        "dtype": dtype,
        "tensor_parallel_size": ranks,
        # Compiling needs Triton, which vLLM's CPU build lacks.
        "enforce_eager": device == "cpu" or settings.enforce_eager,
        "max_model_len": context_length,
        # With it memory comes from a pool that can be freed; a CPU has none.
        "enable_sleep_mode": device != "cpu" and sleep_mode(settings, device) == "offload",
        "max_num_seqs": settings.max_sequences,
        "max_lora_rank": settings.max_adapter_rank,
        # One more, for the adapter of zeros used by the base model's requests.
        "max_loras": settings.adapters_at_once + 1,
        "lora_target_modules": lora_targets(shapes),
        # Adapters evicted from this cache are read from their file again.
        "max_cpu_loras": 4 * settings.adapters_at_once + 1,
        **(_of_images(context_length) if sees else {}),
        **memory,
    }


def _of_images(context_length: int) -> dict[str, Any]:
    return {
        # vLLM reserves memory for as many as there may be, and each takes some tokens.
        "limit_mm_per_prompt": {
            "image": max(1, min(VLLM_MOST_IMAGES, context_length // _LEAST_IMAGE_TOKENS))
        },
        # Otherwise an adapter on the vision tower would be silently ignored.
        "enable_tower_connector_lora": True,
        # The host caches processed images by their hash.
        "mm_processor_cache_gb": 0,
    }


def process_environment(folder: Path, devices: Sequence[str], threads: int) -> dict[str, str]:
    """Return the environment of vLLM's processes, which put their files into `folder`."""
    gpus = _visible_gpus(devices, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return {
        "HF_HUB_OFFLINE": "1",
        # Sockets and other files, which are removed with the folder.
        "TMPDIR": str(folder),
        "VLLM_RPC_BASE_PATH": str(folder),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": "",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        # `worker.py` is written for this one.
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        # On a CPU it would bind its threads to cores that the learner also uses.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
        **({"CUDA_VISIBLE_DEVICES": gpus} if gpus is not None else {}),
    }


def _visible_gpus(devices: Sequence[str], visible: str | None) -> str | None:
    """Return the `CUDA_VISIBLE_DEVICES` for processes that compute on these devices.

    Args:
        devices: `cpu`, `cuda`, `cuda:1`, ..., among those visible to this process.
        visible: The variable of this process; None if it is not set.
    """
    numbers = [number for device in devices if (number := device.partition(":")[2])]
    if not numbers:
        return visible
    known = visible.split(",") if visible else None
    return ",".join(known[int(number)].strip() if known else number for number in numbers)
