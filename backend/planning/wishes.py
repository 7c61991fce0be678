"""What the operator wishes about the place of a model: `placement` for all, `models.NAME.placement` for one.

What is left out follows from the model and the machines.
"""

from __future__ import annotations

import sys
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from backend.compute.supported_models import Quantization
from backend.planning.strict_settings import Settings
from tinkergym.schema.refusals import Refusal

DIVIDED_FROM = 100_000_000
"""Parameters of a policy that `divided="auto"` shards over the ranks."""
GPU_MEMORY = 0.4
"""Fraction of a GPU's memory that vLLM takes, unless the operator says otherwise."""
_NEVER = sys.maxsize


class LearnerPlacement(Settings):
    """Where a model learns."""

    ranks: int | None = Field(None, ge=1, le=64)
    """Processes that train together, each with a part of each batch. On GPUs each has one, and there is by
    default one on each GPU of the model; on a CPU the default is 1, and several divide `torch_threads`."""
    divided: Literal["auto", True, False] = "auto"
    """Whether full-parameter policies are sharded over the ranks (FSDP2), which saves memory and costs
    communication per layer. `auto` shards those with 100 million parameters and more. Adapters are always
    copied to each rank."""

    @property
    def divide_from(self) -> int:
        """The parameters from which a policy is sharded."""
        return {"auto": DIVIDED_FROM, True: 1, False: _NEVER}[self.divided]


class ModelPlacement(Settings):
    """Where a model runs, as far as its operator wishes."""

    gpus: int | None = Field(None, ge=0, le=512)
    """GPUs of the model in all. 0 means a CPU. By default all that have room for it on one node, or a CPU
    where there is no GPU. Bit-identical results are guaranteed on a CPU."""
    learner: LearnerPlacement = LearnerPlacement()
    """Its ranks."""
    engines: int | None = Field(None, ge=1, le=64)
    """Engines that sample from it. By default one, or as many as its GPUs allow."""
    tensor_parallel: int | None = Field(None, ge=1, le=64)
    """GPUs of one engine, all on one node. By default as few as hold the weights."""
    together: bool | None = None
    """Whether learner and engines use the same GPUs, which is the default, or each has GPUs of its own."""
    pools: int | None = Field(None, ge=1, le=64)
    """Most pools of the model, each with a place of its own for `jobs_per_pool` jobs; the default is 1.
    Another one starts when the others have no free place for a queued job."""
    cpus: float | None = Field(None, gt=0)
    """CPUs of the process that runs its jobs. By default `torch_threads`."""
    memory_bytes: int | None = Field(None, ge=1)
    """Memory of that process. By default what the model is expected to take."""
    labels: dict[str, str] = {}
    """Labels that a node must have to run it: Ray's own, and those that `ray start --labels` gives it."""
    trains: Literal["auto", "lora", "full"] = "auto"
    """What its GPUs need memory for: adapters only, or policies of all parameters. `auto` plans for all
    parameters if that takes at most half of each GPU."""

    @model_validator(mode="after")
    def _parts_fit_into_its_gpus(self) -> Self:
        if not self.gpus:
            return self
        ranks, engine_gpus = self.learner.ranks or 1, (self.engines or 1) * (self.tensor_parallel or 1)
        if ranks > self.gpus:
            reason = f"{ranks} ranks need one GPU each, but gpus={self.gpus}"
            raise Refusal("learner.ranks", reason, "lower it, or raise gpus").in_validator()
        if engine_gpus > self.gpus:
            reason = (
                f"needs {engine_gpus} GPUs for all engines (engines x tensor_parallel), but gpus={self.gpus}"
            )
            raise Refusal("engines", reason, "lower it, or raise gpus").in_validator()
        if self.together is False and ranks + engine_gpus > self.gpus:
            reason = (
                f"apart, {ranks} ranks and {engine_gpus} GPUs of engines need {ranks + engine_gpus}, "
                f"but gpus={self.gpus}"
            )
            raise Refusal("gpus", reason, "raise it, or set together=true").in_validator()
        return self

    def filled_from(self, general: ModelPlacement) -> ModelPlacement:
        """Return this with what it leaves out taken from the placement of all models.

        Raises:
            ValidationError: The two together contradict each other.
        """
        return ModelPlacement.model_validate(_merged(_chosen(general), _chosen(self)))


class OfferedModel(Settings):
    """A model that jobs may name."""

    path: str
    """A directory or a Hugging Face hub id."""
    placement: ModelPlacement = ModelPlacement()
    """Where it runs; what is left out is taken from the service's `placement`."""
    quantized: Quantization = ""
    """Weights of its linear layers in 4 or 8 bits, through bitsandbytes: for LoRA jobs with
    `engine="transformers"` and one learner rank."""
    teachers: list[str] = []
    """Other models of `models` that teach it in distillation jobs. Its GPUs, and in a cluster its memory,
    have room for all of them. Without, only a model on a CPU has teachers on other base models."""


def for_all_parameters(model: str) -> str:
    """Return the name under which it is recorded that a model's place has no room to train all parameters."""
    return f"{model}|full"


def _chosen(placement: ModelPlacement) -> dict[str, Any]:
    # Not `exclude_unset`: settings travel as JSON, and there all are set.
    return placement.model_dump(exclude_defaults=True)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    learner = {**below.get("learner", {}), **above.get("learner", {})}
    return {**below, **above, "learner": learner}
