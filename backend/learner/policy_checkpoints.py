"""What a policy's checkpoint consists of: its weights as others can load them, and its optimizer's state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue
from torch import Tensor

from backend.compute.weights import FullWeights, PolicyWeights, weights_sha256
from backend.compute.whole_model import model_class
from backend.learner.checkpoints import Checkpoint, CheckpointManifest, writing
from backend.learner.optimiser import PolicyOptimiser
from backend.learner.policies import FullPolicy, LoraPolicy, Policy, restore
from backend.learner.value_head import ValueHead
from tinkergym.errors import CheckpointCorruptError, ConflictError
from tinkergym.schema.job_spec import FullParameters, LoRA

_ADAPTER_FILE = "adapter_model.safetensors"
_MODEL_FILE = "model.safetensors"
_OPTIMIZER_FILE = "optimizer.safetensors"
_VALUE_HEAD_FILE = "value_head.safetensors"
"""Beside the weights and not among them: what loads a policy elsewhere has no use for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseModel:
    """Which model the policies of a learner began from."""

    path: str
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the job knows about a checkpoint and the learner does not."""

    step: int
    policy_version: int
    extra: Mapping[str, JsonValue]


def save_policy(
    directory: Path,
    policy: LoraPolicy | FullPolicy,
    weights: PolicyWeights,
    optimizer_state: Mapping[str, Tensor],
    *,
    optimizer_steps: int,
    base: BaseModel,
    progress: Progress,
    value_head: ValueHead | None = None,
) -> CheckpointManifest:
    """Write it; `weights` and `optimizer_state` are the policy's present ones."""
    with writing(directory) as writer:
        if isinstance(policy, LoraPolicy):
            writer.add_tensors(_ADAPTER_FILE, weights.tensors)
            writer.add_json("adapter_config.json", policy.peft_config(base_model=base.path))
        else:
            policy.save_pretrained(writer.directory, weights)
        writer.add_tensors(_OPTIMIZER_FILE, optimizer_state)
        if value_head is not None:
            writer.add_tensors(_VALUE_HEAD_FILE, value_head.tensors())
        return writer.finish(
            step=progress.step,
            policy_version=progress.policy_version,
            adapter=policy.adapter,
            model_fingerprint=base.fingerprint,
            optimizer_steps=optimizer_steps,
            weights_file=_ADAPTER_FILE if isinstance(policy, LoraPolicy) else _MODEL_FILE,
            weights_sha256=weights_sha256(weights),
            extra=dict(progress.extra),
        )


def open_for(directory: Path, adapter: LoRA | FullParameters, *, base: BaseModel) -> Checkpoint:
    """Open a checkpoint that a policy of this kind is to be made from.

    Raises:
        CheckpointCorruptError: Its files are not those that were written.
        ConflictError: It belongs to another base model or adapter.
    """
    checkpoint = Checkpoint.open(directory)
    manifest = checkpoint.manifest
    if manifest.adapter != adapter:
        raise ConflictError(
            f"checkpoint {directory} holds {manifest.adapter!r}, the job asks for {adapter!r}",
            hint="resume with the settings that the job began with",
            field="adapter",
        )
    if manifest.model_fingerprint != base.fingerprint:
        raise ConflictError(
            f"checkpoint {directory} was made with another base model than {base.path}",
            hint="serve the model that the job began with, under the same name",
            field="model",
        )
    return checkpoint


def restore_policy(checkpoint: Checkpoint, policy: Policy, optimiser: PolicyOptimiser | None) -> None:
    """Bring a policy to the checkpoint's state; a full model was already read from its directory.

    Without an optimiser only its weights.

    Raises:
        CheckpointCorruptError: What was read is not what was saved.
        ConflictError: The tensors belong to other layers.
    """
    if isinstance(policy, LoraPolicy):
        tensors = checkpoint.tensors(_ADAPTER_FILE)
        if {n: t.shape for n, t in tensors.items()} != {n: p.shape for n, p in policy.parameters.items()}:
            raise ConflictError(f"the adapter in {checkpoint.directory} does not fit the model's layers")
        restore(policy, tensors)
    if policy.sha256() != checkpoint.manifest.weights_sha256:
        raise CheckpointCorruptError(
            f"the weights read from {checkpoint.directory} are not those that were saved: their hash differs",
            hint="load it with the versions of torch and transformers that wrote it",
        )
    if optimiser is not None:
        state = checkpoint.tensors_on_disk(_OPTIMIZER_FILE)
        optimiser.restore(state, steps=checkpoint.manifest.optimizer_steps)


def full_weights(checkpoint: Checkpoint) -> FullWeights:
    """Read a full policy's weights under their names in the model, on the CPU.

    Its file has those that its family is published with: experts one by one, tied weights once.
    """
    shortest = min(checkpoint.dtypes(_MODEL_FILE), key=lambda dtype: dtype.itemsize)
    model = model_class(checkpoint.directory).from_pretrained(checkpoint.directory, dtype=shortest)
    every = model.named_parameters(remove_duplicate=False)
    return FullWeights(tensors={name: parameter.detach() for name, parameter in every})


def restore_value_head(checkpoint: Checkpoint, value_head: ValueHead, *, needed: bool) -> None:
    """Take over the checkpoint's value head; where it has none and none is `needed`, leave it at zero.

    Raises:
        ConflictError: There is none, or it belongs to a model of another width.
    """
    if _VALUE_HEAD_FILE in checkpoint.manifest.files:
        value_head.restore(checkpoint.tensors(_VALUE_HEAD_FILE))
    elif needed:
        raise ConflictError(
            f"checkpoint {checkpoint.directory} has no value head, which the job's algorithm trains",
            hint="resume with the settings that the job began with",
            field="algorithm",
        )
