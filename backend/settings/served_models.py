"""Which models a service offers, where they run, and what samples them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from backend.compute.supported_models import Quantization
from backend.planning.strict_settings import Settings
from backend.planning.wishes import GPU_MEMORY, ModelPlacement, OfferedModel
from tinkergym.errors import MissingExtraError
from tinkergym.schema.refusals import Refusal

DType = Literal["float32", "bfloat16"]

PACKAGED_MODELS = {
    name: str(Path(__file__).parents[1] / "models" / name) for name in ("nano", "nano-instruct", "nano-vl")
}

VLLM_LEAST_TEMPERATURE = 0.01
"""vLLM silently raises smaller temperatures to this; then the logprobs would be of another temperature."""

VLLM_MOST_IMAGES = 64
"""Images per prompt, for which vLLM reserves memory when it starts."""


_REPLACED = {
    "device": "placement.gpus=0 for a CPU, placement.gpus=1 for one GPU; CUDA_VISIBLE_DEVICES says which",
    "learner_ranks": "placement.learner.ranks",
    "learner_divide_from": "placement.learner.divided",
}
"""Settings of the past, and what does their work."""


def require_vllm() -> None:
    """Raise MissingExtraError if vLLM is not installed. The check does not import it."""
    if find_spec("vllm") is None:
        raise MissingExtraError(
            "engine=vllm needs vLLM, which is not installed",
            hint="make vllm (scripts/install_vllm.sh) on Linux x86-64, or set engine=transformers",
            field="engine",
        )


class VllmSettings(Settings):
    """How vLLM runs; only read with `engine="vllm"`."""

    max_adapter_rank: Literal[8, 16, 32, 64, 128, 256, 512] = 32
    """Adapters of a higher rank are refused. Lower ranks are padded to it, which costs time and
    memory."""
    adapters_at_once: int = Field(8, ge=1)
    """Different adapters in one batch. Further ones take turns."""
    cache_bytes: int = Field(1 << 30, ge=1 << 20)
    """Size of the KV cache on a CPU."""
    gpu_memory: float = Field(GPU_MEMORY, gt=0, lt=1)
    """Fraction of a GPU's memory for vLLM's weights and cache. The learner needs the rest."""
    enforce_eager: bool = False
    """On a GPU: disable CUDA graphs and `torch.compile`, which starts sooner and decodes more slowly.
    They are always disabled on a CPU."""
    max_sequences: int = Field(256, ge=1)
    """Most sequences in one batch."""
    start_seconds: float = Field(300.0, gt=0)
    """Time for vLLM to load the model and answer its first canary request."""
    full_weights: Literal["host", "device"] = "host"
    """Where full weights wait for vLLM. `host` is shared memory. `device` is the GPU, by CUDA IPC: faster
    if several such policies take turns, at the cost of a copy of each in GPU memory. Refused without a
    GPU."""
    sleep: Literal["auto", "offload", "end"] = "auto"
    """What sleeping means. `offload` is vLLM's sleep mode: on a GPU it moves the weights to the CPU and
    frees the cache; on a CPU it only empties the cache. `end` stops vLLM and starts it again on the next
    request. `auto` is `offload` on a GPU and `end` on a CPU."""
    canary_seconds: float = Field(20.0, gt=0)
    """After this long without output vLLM is asked for one token."""
    canary_deadline_seconds: float = Field(60.0, gt=0)
    """If that token does not arrive in this time, vLLM is restarted."""


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ServedModels(Settings):
    """The settings about models and engines."""

    models: dict[str, OfferedModel] = Field(default=PACKAGED_MODELS, validate_default=True)
    """Table of models: name = directory or Hugging Face hub id, or a table with this as `path`, a `placement`
    of its own, and `models.NAME.teachers`: other models of this table that distillation jobs on it may have
    as teachers. Where it runs on GPUs, its place has room for all of them, and jobs with other teachers are
    refused; on a CPU they are not. `nano`, `nano-instruct` and `nano-vl` are always there."""

    placement: ModelPlacement = ModelPlacement()
    """Where all models run, unless `models.NAME.placement` says otherwise."""

    allow_any_model: bool = True
    """Whether the local owner (the key in `local.json`) may name directories and hub ids outside
    `models`. Other keys never may."""

    download_bytes: int = Field(100 * 2**30, ge=0)
    """Largest model that is downloaded from the hub if `models` does not list it."""

    preload: list[str] = ["nano"]
    """Models that are loaded when the service starts."""

    gpu_bytes: int | None = Field(None, ge=1)
    """Memory of each GPU of a cluster's nodes, where nvidia-smi does not tell it."""

    dtype: DType = "float32"
    """Number format of models, in learners and engines. Trained weights, gradients and optimizer state
    stay float32; full-parameter policies keep a second copy for it. Bit-identical results are guaranteed
    in float32."""

    engine: Literal["transformers", "vllm", "scripted"] = "transformers"
    """What samples: `transformers` in the pool worker, `vllm` in its own process, or `scripted`, which draws
    tokens uniformly, for trying out the service."""

    vllm: VllmSettings = VllmSettings()
    """Only read with `engine="vllm"`."""

    torch_threads: int = Field(default_factory=_cores, ge=1)
    """Threads per loaded model. With several models on one machine, divide its cores between them."""

    @field_validator("models", mode="before")
    @classmethod
    def _with_packaged(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        for name, own in value.items():
            if not isinstance(own, str | Mapping | OfferedModel):
                reason = f"{own!r} is neither a directory nor a hub id"
                raise Refusal(f"{name}", reason, "write a string, or a table with path").in_validator()
        return {
            name: {"path": own} if isinstance(own, str) else _with_path(name, own)
            for name, own in {**PACKAGED_MODELS, **value}.items()
        }

    @model_validator(mode="before")
    @classmethod
    def _names_of_today(cls, values: object) -> object:
        for name, instead in _REPLACED.items():
            if isinstance(values, Mapping) and name in values:
                raise Refusal(name, "was replaced", f"set {instead}", "replaced").in_validator()
        return values

    @model_validator(mode="after")
    def _placements_agree(self) -> Self:
        for name in self.models:
            try:
                if (self.placement_of(name).tensor_parallel or 1) > 1 and self.engine != "vllm":
                    reason = f"above 1 needs engine=vllm, not engine={self.engine}"
                    raise Refusal("placement.tensor_parallel", reason, "leave it out").in_validator()
            except ValidationError as error:
                reason = f"does not agree with placement: {error.errors()[0]['msg']}"
                raise Refusal(
                    f"models.{name}.placement", reason, "change one of them"
                ).in_validator() from None
        return self

    @model_validator(mode="after")
    def _quantized_models_can_be_run(self) -> Self:
        for name, offered in self.models.items():
            ranks = self.placement_of(name).learner.ranks or 1
            if offered.quantized and (self.engine == "vllm" or ranks > 1):
                what = "with engine=vllm" if self.engine == "vllm" else "by several learner ranks"
                hint = "leave it out, or use engine=transformers and one rank"
                raise Refusal(f"models.{name}.quantized", f"cannot be run {what}", hint).in_validator()
        return self

    @model_validator(mode="after")
    def _preloaded_models_are_known(self) -> Self:
        for name in self.preload:
            if name not in self.models and not self.allow_any_model:
                reason = f"contains {name!r}, which is not in models"
                raise Refusal("preload", reason, "add it there").in_validator()
        return self

    @model_validator(mode="after")
    def _teachers_are_known(self) -> Self:
        for name, offered in self.models.items():
            if strange := sorted(set(offered.teachers) - self.models.keys()):
                reason = f"contains {strange[0]!r}, which is not in models"
                raise Refusal(f"models.{name}.teachers", reason, "add it there").in_validator()
        return self

    @model_validator(mode="after")
    def _weights_that_stay_on_a_gpu_have_one(self) -> Self:
        on_cpu = self.placement.gpus == 0
        if self.vllm.full_weights == "device" and (self.engine != "vllm" or on_cpu):
            reason = f"device requires engine=vllm on a GPU, not engine={self.engine}"
            reason += " with placement.gpus=0" if on_cpu else ""
            raise Refusal("vllm.full_weights", reason, "leave it out").in_validator()
        divided = [name for name in self.models if (self.placement_of(name).tensor_parallel or 1) > 1]
        if self.vllm.full_weights == "device" and divided:
            reason = f"device requires engines of one GPU, but {divided[0]} has several (tensor_parallel)"
            raise Refusal("vllm.full_weights", reason, "leave it out").in_validator()
        return self

    @property
    def model_paths(self) -> dict[str, str]:
        """Directory or hub id of each model in `models`."""
        return {name: model.path for name, model in self.models.items()}

    def quantization_of(self, model: str) -> Quantization:
        """Return the format of a model's linear layers, if it is not `dtype`."""
        offered = self.models.get(model)
        return "" if offered is None else offered.quantized

    def teachers_of(self, model: str) -> list[str]:
        """Return the other models for which there is room next to a model."""
        offered = self.models.get(model)
        return [] if offered is None else offered.teachers

    def placement_of(self, model: str) -> ModelPlacement:
        """Return where a model runs; one that `models` does not list, where all do."""
        offered = self.models.get(model)
        if offered is None:
            return self.placement
        placement = offered.placement.filled_from(self.placement)
        if not offered.quantized or placement.learner.ranks is not None:
            return placement
        one = placement.learner.model_copy(update={"ranks": 1})
        return placement.model_copy(update={"learner": one})


def _with_path(name: str, model: object) -> object:
    """Return a model's table; a packaged one need not say where it is."""
    if isinstance(model, Mapping) and "path" not in model and name in PACKAGED_MODELS:
        return {"path": PACKAGED_MODELS[name], **model}
    return model
