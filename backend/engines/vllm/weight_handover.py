"""Weights on their way to vLLM: refused if vLLM cannot use them, else put where its processes read them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import torch

from backend.catalog.models import ModelFacts
from backend.compute.weights import AdapterWeights, FullWeights, PolicyWeights, require_finite
from backend.engines.vllm.files import (
    adapted_modules,
    misfit,
    names_to_load,
    write_adapter,
    write_nothing,
)
from backend.engines.vllm.published_policies import PolicyVersion
from backend.engines.vllm.shared_weights import share_in_file, share_on_device
from backend.settings.served_models import VllmSettings
from tinkergym.errors import InvalidRequestError, StorageFullError

_SHARE_ON_THE_HOST = (
    "set vllm.full_weights=host; docs/operating/engines.md lists the requirements of CUDA IPC"
)


@dataclass(frozen=True, slots=True)
class WeightHandover:
    """Hands versions of one model over to the processes of one engine. Thread-safe."""

    facts: ModelFacts
    settings: VllmSettings
    device: torch.device
    folder: Path
    """The engine's private folder."""
    shapes: dict[str, tuple[int, ...]]
    """As `model_shapes` returns them."""
    _writing_nothing: threading.Lock = field(default_factory=threading.Lock)

    def require_loadable(self, policy: str, weights: PolicyWeights) -> None:
        """Raise InvalidRequestError if vLLM cannot use these weights as they are in files."""
        require_finite(weights)
        strange = misfit(weights, self.shapes)
        if strange is not None:
            raise InvalidRequestError(
                f"the weights of policy {policy!r} do not fit the model at {strange!r}",
                hint="were they made for another model? full weights hold every parameter under its name",
                code="other_model",
            )
        if isinstance(weights, FullWeights) and self.facts.has_experts:
            # On a CPU vLLM (0.32.0) computes experts with copies that a reload does not update.
            raise InvalidRequestError(
                f"vLLM does not support full-parameter training of a mixture of experts (policy {policy!r})",
                hint="train an adapter (tg.LoRA), or run the service with engine=transformers",
                field="adapter",
            )
        if isinstance(weights, AdapterWeights):
            most = self.settings.max_adapter_rank
            if weights.rank > most:
                raise InvalidRequestError(
                    f"policy {policy!r} has an adapter of rank {weights.rank}; this engine supports at "
                    f"most {most}",
                    hint=f"set vllm.max_adapter_rank to {weights.rank} or more, or train a smaller adapter",
                    field="adapter.rank",
                )
            if not adapted_modules(weights):
                raise InvalidRequestError(f"the adapter of policy {policy!r} changes no linear layer")

    def hand_over(self, made: PolicyVersion, weights: PolicyWeights) -> None:
        """Put weights where vLLM's processes can read them.

        Raises:
            StorageFullError: The device has no memory for them.
            InvalidRequestError: The device cannot share memory.
            OSError: They cannot be written.
        """
        if isinstance(weights, AdapterWeights):
            write_adapter(made.folder, weights)
            made.handed_over = {"path": str(made.folder), "nothing": str(self._nothing(weights))}
            return
        if self.settings.full_weights == "host":
            made.folder.mkdir(mode=0o700)
            opening = share_in_file(weights.tensors, made.folder / "weights")
        else:
            try:
                made.memory, opening = share_on_device(weights.tensors, self.device)
            except torch.OutOfMemoryError as error:
                raise StorageFullError(
                    f"not enough memory on {self.device} for the weights of policy {made.name!r}",
                    hint="lower vllm.gpu_memory or idle_policies, or set vllm.full_weights=host",
                ) from error
            except RuntimeError as error:
                raise InvalidRequestError(
                    f"{self.device} cannot share the weights of policy {made.name!r}: {error}",
                    hint=_SHARE_ON_THE_HOST,
                    field="vllm.full_weights",
                ) from error
        made.handed_over = {"shared": opening, "names": names_to_load(weights, self.shapes)}

    def _nothing(self, like: AdapterWeights) -> Path:
        """Return the folder of an adapter of zeros, which vLLM loads first."""
        nothing = self.folder / "nothing"
        with self._writing_nothing:
            if not nothing.exists():
                # Renamed when it is whole: after a full disk the next call must not find half of it.
                unfinished = nothing.with_name("nothing-yet")
                write_nothing(unfinished, like=like)
                unfinished.rename(nothing)
        return nothing


def not_loaded(made: PolicyVersion, why: str) -> InvalidRequestError:
    """Return the error for weights that vLLM itself refuses."""
    return InvalidRequestError(
        f"vLLM cannot load policy {made.name!r}: {why}",
        hint=_SHARE_ON_THE_HOST
        if made.memory is not None
        else "was the adapter made for this model? vLLM only adapts linear layers of the decoder",
    )


def refuse_device_weights(settings: VllmSettings, device: torch.device, *, ranks: int) -> None:
    """Raise InvalidRequestError if full weights were to be shared on no GPU, or on several."""
    if settings.full_weights == "device" and (device.type == "cpu" or ranks > 1):
        runs = (
            "on the CPU"
            if device.type == "cpu"
            else f"on {ranks} GPUs, and each can open its own memory only"
        )
        raise InvalidRequestError(
            f"vllm.full_weights=device needs one GPU, but vLLM runs {runs}",
            hint="leave vllm.full_weights out",
            field="vllm.full_weights",
        )
