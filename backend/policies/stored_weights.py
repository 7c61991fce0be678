"""A checkpoint's weights in the engine's form, to sample a policy whose job has ended."""

from __future__ import annotations

from backend.compute.weights import AdapterWeights, PolicyWeights, weights_sha256
from backend.learner.checkpoints import Checkpoint
from backend.learner.policy_checkpoints import full_weights
from tinkergym.errors import CheckpointCorruptError
from tinkergym.schema.jobs.parts import LoRA


def stored_weights(checkpoint: Checkpoint) -> PolicyWeights:
    """Read them, and check their hash.

    Raises:
        CheckpointCorruptError: The weights are damaged.
    """
    manifest = checkpoint.manifest
    weights: PolicyWeights
    if isinstance(manifest.adapter, LoRA):
        tensors = checkpoint.tensors(manifest.weights_file)
        adapter = manifest.adapter
        weights = AdapterWeights(
            rank=adapter.rank, alpha=adapter.alpha, rslora=adapter.rslora, tensors=tensors
        )
    else:
        weights = full_weights(checkpoint)
    if weights_sha256(weights) != manifest.weights_sha256:
        raise CheckpointCorruptError(f"the weights in {checkpoint.directory} do not have its manifest's hash")
    return weights
