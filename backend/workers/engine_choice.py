"""Which engine a pool samples with, according to the operator's settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

import torch

from backend.catalog.models import read_model_facts
from backend.compute.supported_models import Quantization
from backend.engines.protocol import SamplingEngine
from backend.engines.scripted.scripted_engine import ScriptedEngine
from backend.engines.token_sampling import uniforms
from backend.engines.transformers.transformers_engine import TransformersEngine
from backend.engines.vllm.vllm_engine import VllmEngine
from backend.settings.served_models import DType, VllmSettings
from backend.vision.shared_caches import SharedImages
from tinkergym.schema.sampling import SampleRequest

EngineName = Literal["transformers", "vllm", "scripted"]


def make_engine(
    name: EngineName,
    model_directory: Path,
    *,
    devices: Sequence[str],
    device_lock: AbstractContextManager[object],
    threads: int,
    vllm: VllmSettings,
    log: Path,
    dtype: DType = "float32",
    images: SharedImages | None = None,
    cache_bytes: int | None = None,
    merged_adapters: int | None = None,
    quantized: Quantization = "",
) -> SamplingEngine:
    """Start the engine of a pool.

    Args:
        name: `scripted` draws tokens uniformly without using weights, for trying out the service: the parity
            check stops a job that trains with it.
        model_directory: From `resolve_model`.
        devices: `cpu`, `cuda`, `cuda:1`, ... Only vLLM divides a model over several.
        device_lock: Held by the transformers engine while it computes; vLLM has a process of its own.
        threads: OpenMP threads of vLLM on a CPU.
        vllm: vLLM's settings.
        log: File for the output of vLLM's processes.
        dtype: Type of weights and cache.
        images: Source of image files, with the shared caches.
        cache_bytes: Memory for the cache of the transformers engine; None lets it choose.
        merged_adapters: How many of them keep merged weights in the transformers engine; None lets it choose.
        quantized: The format of the linear layers' weights in the transformers engine, if it is not `dtype`.

    Raises:
        InvalidRequestError: The engine cannot run the model.
        MissingExtraError: vLLM is not installed.
    """
    if name == "vllm":
        return VllmEngine(
            model_directory,
            devices=devices,
            threads=threads,
            settings=vllm,
            log=log,
            dtype=dtype,
            images=images,
        )
    if name == "scripted":
        facts = read_model_facts(model_directory)
        vocabulary = facts.vocabulary_size

        def evenly(request: SampleRequest) -> list[int]:
            begin = len(request.prompt_ids)
            # max_tokens may be any number; anything beyond the context would be cut off anyway.
            places = range(begin, min(begin + request.max_tokens, facts.context_length))
            numbers = uniforms([request.seed] * len(places), list(places))
            return [int(number * vocabulary) for number in numbers]

        return ScriptedEngine(
            evenly,
            context_length=facts.context_length,
            logprob=-math.log(vocabulary),
            model_directory=model_directory,
        )
    return TransformersEngine(
        model_directory,
        device=devices[0],
        dtype=getattr(torch, dtype),
        device_lock=device_lock,
        images=images,
        cache_bytes=cache_bytes,
        merged_adapters=4 if merged_adapters is None else merged_adapters,
        quantized=quantized,
    )
