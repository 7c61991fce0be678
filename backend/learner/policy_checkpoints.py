"""A policy's checkpoint: its weights in a format others can load, and its optimizer's state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from backend.compute.weights import FullWeights, PolicyWeights, weights_sha256
from backend.compute.whole_model import model_class
from backend.learner.checkpoints import Checkpoint, CheckpointManifest, writing
from backend.learner.loaded_model import LoadedModel
from backend.learner.policy_weights import LoraPolicy, restore
from backend.learner.training_states import TrainingState
from backend.learner.value_head import ValueHead
from tinkergym.errors import CheckpointCorruptError, ConflictError
from tinkergym.schema.jobs.parts import FullParameters, LoRA

_ADAPTER_FILE = "adapter_model.safetensors"
_MODEL_FILE = "model.safetensors"
_OPTIMIZER_FILE = "optimizer.safetensors"
_VALUE_HEAD_FILE = "value_head.safetensors"
"""Separate from the weights: other software that loads the policy does not use it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Facts about a checkpoint that the job knows and the learner does not."""

    step: int
    """Completed training steps."""
    policy_version: int
    """The engine's version number of these weights."""
    extra: Mapping[str, JsonValue]
    """Data for the job to read back from the manifest."""


def save_policy(
    directory: Path, state: TrainingState, weights: PolicyWeights, *, base: LoadedModel, progress: Progress
) -> CheckpointManifest:
    """Write a policy's checkpoint; `weights` are its current ones."""
    policy, optimizer_state = state.policy, state.optimizer.state()
    with writing(directory) as writer:
        if isinstance(policy, LoraPolicy):
            writer.add_tensors(_ADAPTER_FILE, weights.tensors)
            writer.add_json("adapter_config.json", policy.peft_config(base_model=base.path))
        else:
            policy.save_pretrained(writer.directory, weights)
        writer.add_tensors(_OPTIMIZER_FILE, optimizer_state)
        if state.value_head is not None:
            writer.add_tensors(_VALUE_HEAD_FILE, state.value_head.tensors())
        return writer.finish(
            step=progress.step,
            policy_version=progress.policy_version,
            adapter=policy.adapter,
            model_fingerprint=base.fingerprint,
            optimizer_steps=state.optimizer.steps,
            weights_file=_ADAPTER_FILE if isinstance(policy, LoraPolicy) else _MODEL_FILE,
            weights_sha256=weights_sha256(weights),
            extra=dict(progress.extra),
        )


def open_for(directory: Path, adapter: LoRA | FullParameters, *, base: LoadedModel) -> Checkpoint:
    """Open a checkpoint in order to create a policy of this kind.

    Raises:
        CheckpointCorruptError: Its files differ from what was written.
        ConflictError: It belongs to a different base model or adapter.
    """
    checkpoint = Checkpoint.open(directory)
    manifest = checkpoint.manifest
    if manifest.adapter != adapter:
        raise ConflictError(
            f"checkpoint {directory} contains {manifest.adapter!r}, but the job needs {adapter!r}",
            hint="resume with the settings the job started with",
            code="other_adapter",
            field="adapter",
        )
    # Of an adapter from elsewhere the base model is known by its layers only.
    if manifest.model_fingerprint and manifest.model_fingerprint != base.fingerprint:
        raise ConflictError(
            f"checkpoint {directory} was written for a different base model than {base.path}",
            hint="serve the model the job started with, under the same name",
            code="other_model",
            field="model",
        )
    return checkpoint


def restore_policy(checkpoint: Checkpoint, state: TrainingState, *, fresh: bool) -> None:
    """Set a policy to the checkpoint's state; a full model was already read from its directory.

    Args:
        checkpoint: The checkpoint.
        state: The policy.
        fresh: Whether a new training run begins: without the optimizer's state, and with a value head of its
            own if the checkpoint has none.

    Raises:
        CheckpointCorruptError: The loaded data differs from what was saved.
        ConflictError: The tensors belong to different layers, or there is no value head.
    """
    policy = state.policy
    if state.value_head is not None:
        _restore_value_head(checkpoint, state.value_head, needed=not fresh)
    if isinstance(policy, LoraPolicy):
        tensors = checkpoint.tensors(_ADAPTER_FILE)
        if {n: t.shape for n, t in tensors.items()} != {n: p.shape for n, p in policy.parameters.items()}:
            raise ConflictError(f"the adapter in {checkpoint.directory} does not fit the model's layers")
        restore(policy, tensors)
    if policy.sha256() != checkpoint.manifest.weights_sha256:
        raise CheckpointCorruptError(
            f"the weights loaded from {checkpoint.directory} differ from what was saved (wrong hash)",
            hint="load it with the versions of torch and transformers that wrote it",
        )
    if not fresh:
        moments = checkpoint.tensors_on_disk(_OPTIMIZER_FILE)
        state.optimizer.restore(moments, steps=checkpoint.manifest.optimizer_steps)


def full_weights(checkpoint: Checkpoint) -> FullWeights:
    """Read a full policy's weights under their names in the model, on the CPU.

    Its file uses the published names of its family: experts one by one, tied weights once.
    """
    shortest = min(checkpoint.dtypes(_MODEL_FILE), key=lambda dtype: dtype.itemsize)
    model = model_class(checkpoint.directory).from_pretrained(checkpoint.directory, dtype=shortest)
    # With both names of tied weights, as the policy in the learner has them.
    every = model.named_parameters(remove_duplicate=False)
    return FullWeights(tensors={name: parameter.detach() for name, parameter in every})


def _restore_value_head(checkpoint: Checkpoint, value_head: ValueHead, *, needed: bool) -> None:
    """Load the checkpoint's value head; if it has none and none is `needed`, leave it at zero.

    Raises:
        ConflictError: There is none, or it belongs to a model of a different width.
    """
    if _VALUE_HEAD_FILE in checkpoint.manifest.files:
        value_head.restore(checkpoint.tensors(_VALUE_HEAD_FILE))
    elif needed:
        raise ConflictError(
            f"checkpoint {checkpoint.directory} has no value head, which the job's algorithm trains",
            hint="resume with the settings the job started with",
            code="no_value_head",
            field="algorithm",
        )
