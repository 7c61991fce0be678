"""What the operator sets about vLLM, and what follows for its arguments and its environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class VllmSettings(BaseModel):
    """How vLLM runs; only read with `engine=vllm`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    max_adapter_rank: Literal[8, 16, 32, 64, 128, 256, 512] = 32
    """Adapters of a higher rank are refused. Smaller ones are padded to it, which costs time and memory."""
    adapters_at_once: int = Field(8, ge=1)
    """Different adapters in one batch; further ones wait for their turn."""
    cache_bytes: int = Field(1 << 30, ge=1 << 20)
    """For keys and values on a CPU."""
    gpu_memory: float = Field(0.4, gt=0, lt=1)
    """Part of a GPU's memory for weights and cache together; the learner needs the rest."""
    max_sequences: int = Field(256, ge=1)
    """Sequences in one batch."""
    start_seconds: float = Field(300.0, gt=0)
    """For vLLM to load the model and answer its first canary."""
    canary_seconds: float = Field(20.0, gt=0)
    """After so long without an answer vLLM is asked for one token."""
    canary_deadline_seconds: float = Field(60.0, gt=0)
    """Without that token by then vLLM is ended and started again."""

    def arguments(self, model_directory: Path, context_length: int, device: str) -> dict[str, Any]:
        """Return vLLM's engine arguments, as JSON can carry them."""
        memory: dict[str, Any] = (
            {"kv_cache_memory_bytes": self.cache_bytes, "block_size": 32}
            if device == "cpu"
            else {"gpu_memory_utilization": self.gpu_memory}
        )
        return {
            "model": str(model_directory),
            "dtype": "float32",
            "max_model_len": context_length,
            "max_num_seqs": self.max_sequences,
            "max_lora_rank": self.max_adapter_rank,
            "max_loras": self.adapters_at_once,
            # What falls out of this cache is read from its file again.
            "max_cpu_loras": 4 * self.adapters_at_once,
            **memory,
        }

    def environment(self, device: str, threads: int) -> dict[str, str]:
        """Return the variables of vLLM's processes."""
        index = device.partition(":")[2]
        return {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_PLUGINS": "",
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_LOGGING_LEVEL": "WARNING",
            # `vllm_worker.py` is written against this one.
            "VLLM_USE_V2_MODEL_RUNNER": "0",
            # On a CPU it would bind its threads to cores that the learner uses as well.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(threads),
            **({"CUDA_VISIBLE_DEVICES": index} if index else {}),
        }
