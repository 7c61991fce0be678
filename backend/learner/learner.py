"""The learner: policies on one base model, and the operations of training.

It handles token ids and tensors, not text, rewards, jobs or HTTP. Thread-safe: the device's lock is taken per
micro-batch, so several jobs and an engine can share the device, but calls for one policy must be sequential.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Unpack

import torch
from pydantic import JsonValue

from backend.compute.supported_models import Quantization
from backend.compute.weights import PolicyWeights
from backend.learner.checkpoints import CheckpointManifest
from backend.learner.device_turns import DeviceTurns
from backend.learner.forward_backward import PolicyBatch, forward_backward
from backend.learner.loaded_model import LoadedModel
from backend.learner.pass_results import ForwardBackwardResult, OptimStepResult
from backend.learner.pass_runner import PassRunner, trained_numbers
from backend.learner.policy_checkpoints import Progress, open_for, restore_policy, save_policy
from backend.learner.policy_factory import MakeFull, PolicyFactory
from backend.learner.policy_optimizer import DEFAULT
from backend.learner.policy_weights import FullPolicy
from backend.learner.sequences import (
    BatchTotals,
    FloatArray,
    SampledTokens,
    TokenLimits,
    TrainSequence,
    check_sequences,
)
from backend.learner.token_loss import TokenLoss
from backend.learner.train_pass import TrainPass
from backend.learner.training_states import TrainingState, TrainingStates
from backend.learner.value_head import ValuePass
from backend.learner.worker_threads import WorkerThreads
from backend.vision.pixels import ImageSource
from backend.vision.shared_caches import SharedImages, shared
from tinkergym.schema.jobs.parts import FullParameters, LoRA
from tinkergym.schema.optimizer import AdamW, OptimizerStep


class Learner:
    """Policies on one base model: create, train, copy, save, load and drop them.

    Every method that names a policy raises NotFoundError if there is none of this name.
    """

    def __init__(
        self,
        model_dir: str | Path,
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        device_lock: AbstractContextManager[Any] | None = None,
        micro_batch_tokens: int | None = None,
        cpu_threads: int = 1,
        learners: int = 1,
        room: int | None = None,
        images: ImageSource | SharedImages | None = None,
        make_full: MakeFull | None = None,
        quantized: Quantization = "",
    ) -> None:
        """Load the base model.

        Args:
            model_dir: A Hugging Face model directory or hub id.
            device: torch device.
            dtype: See `LoadedModel.load`, as for `micro_batch_tokens`, `learners` and `room`.
            device_lock: See `DeviceTurns`.
            micro_batch_tokens: Most tokens computed at a time.
            cpu_threads: Number of threads on a CPU. Divided among workers with separate micro-batches and
                gradients, if the model and the gradient's size allow it; 1 leaves torch's number unchanged.
            learners: Number of learners that share the machine's memory.
            room: Bytes planned for activations.
            images: Source of image files for a model with image support; None refuses images.
            make_full: See `PolicyFactory`.
            quantized: See `LoadedModel.load`.

        Raises:
            UnknownModelError: The model cannot be loaded.
        """
        self.device = torch.device(device)
        workers = WorkerThreads(cpu_threads if self.device.type == "cpu" else 1)
        self._turns = DeviceTurns(self.device, device_lock, workers)
        self._base = LoadedModel.load(
            str(model_dir),
            device=self.device,
            dtype=dtype,
            micro_batch_tokens=micro_batch_tokens,
            learners=learners,
            room=room,
            images=None if images is None else shared(images),
            quantized=quantized,
        )
        self._runner = PassRunner(self._base, self._turns, workers)
        self._factory = PolicyFactory(self._base, make_full)
        self._policies = TrainingStates()

    @property
    def model_fingerprint(self) -> str:
        """Fingerprint of the base model's weights, as in checkpoints."""
        return self._base.fingerprint

    @property
    def busy_seconds(self) -> float:
        """Seconds the learner worked, from cutting a batch to its result, without waits for the device."""
        return self._turns.busy_seconds

    @property
    def policy_ids(self) -> list[str]:
        """The existing policies, oldest first."""
        return list(self._policies)

    @property
    def limits(self) -> TokenLimits:
        """The model's limits."""
        return self._base.lm.limits

    def create_policy(
        self,
        policy_id: str,
        adapter: LoRA | FullParameters,
        *,
        seed: int,
        value_head: bool = False,
        optimizer: AdamW = DEFAULT,
    ) -> None:
        """Add an untrained policy, which initially equals the base model; see `PolicyFactory.make`.

        Raises ConflictError if a policy with this name exists.
        """
        self._add(policy_id, adapter, seed=seed, value_head=value_head, optimizer=optimizer)

    def forward_backward(
        self,
        policy_id: str,
        sequences: Sequence[TrainSequence],
        loss: TokenLoss,
        *,
        totals: BatchTotals | None = None,
    ) -> ForwardBackwardResult:
        """Add the gradient of a batch's loss to the accumulated one; see `forward_backward_many`.

        Sequences whose advantage is 0 everywhere have gradient 0: they only run forward, for their logprobs.
        """
        parts = {policy_id: PolicyBatch(sequences=sequences, loss=loss, totals=totals)}
        return self.forward_backward_many(parts)[policy_id]

    def forward_backward_many(self, parts: Mapping[str, PolicyBatch]) -> dict[str, ForwardBackwardResult]:
        """Add to the gradients of several policies; see `forward_backward`."""
        found = self._gradients(parts)
        return {policy_id: self._policies[policy_id].watched(result) for policy_id, result in found.items()}

    def has_gradient(self, policy_id: str) -> bool:
        """Return whether there is an accumulated gradient."""
        return self._policies[policy_id].pending

    def forget_gradient(self, policy_id: str) -> None:
        """Discard the accumulated gradient, if any."""
        self._policies[policy_id].forget_gradient()

    def gradient(self, policy_id: str) -> dict[str, torch.Tensor]:
        """Return the accumulated gradient by parameter; the tensors are not copies.

        Without one, it is created as zeros: a rank without sequences takes part in a common step with it.
        """
        state = self._policies[policy_id]
        state.pending = True
        return state.optimizer.gradient()

    def optim_step(self, policy_id: str, **settings: Unpack[OptimizerStep]) -> OptimStepResult:
        """Apply the accumulated gradient with AdamW and clear it; see `PolicyOptimizer.step`.

        Raises:
            ConflictError: There is no accumulated gradient.
        """
        state = self._policies.with_gradient(policy_id)
        with self._turns.own_tensors(trained_numbers(state.policy)):
            return state.step(settings)

    def logprobs(self, policy_id: str | None, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """Return the logprobs of the sampled tokens, per sequence in input order; None means the base model.

        Their `sampling_logprobs` and `advantage` are ignored.
        """
        policy = None if policy_id is None else self._policies[policy_id].policy
        check_sequences(self.limits, sequences)
        tokens = SampledTokens.unjudged(sequences)
        train_pass = TrainPass(policy.lm if policy else self._base.lm, tokens, weights=None, loss=None)
        self._runner.run(policy, sequences, train_pass)
        return train_pass.learner_logprobs

    def values(self, policy_id: str, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """Return the value head's prediction before each sampled token; otherwise like `logprobs`."""
        head, policy = self._policies.value_head(policy_id), self._policies[policy_id].policy
        check_sequences(self.limits, sequences)
        value_pass = ValuePass(policy.lm, SampledTokens.unjudged(sequences), head)
        self._runner.run(policy, sequences, value_pass)
        return value_pass.values

    def weights(self, policy_id: str) -> PolicyWeights:
        """Return a copy of the policy's weights, on the CPU."""
        policy = self._policies[policy_id].policy
        with self._turns.own_tensors(trained_numbers(policy)):
            return policy.weights()

    def save(
        self,
        policy_id: str,
        directory: str | Path,
        *,
        step: int,
        policy_version: int,
        extra: Mapping[str, JsonValue] | None = None,
    ) -> CheckpointManifest:
        """Write a checkpoint, atomically, from which `load` continues bitwise equal.

        An adapter can also be read by `peft.PeftModel.from_pretrained`, a full model by transformers.

        The parent of `directory` may only contain checkpoints of one policy; see `Progress` for the others.
        Raises ConflictError if there is an accumulated gradient, which would be lost, and StorageFullError if
        the disk is full; no partial files remain.
        """
        state = self._policies.without_gradient(policy_id)
        progress = Progress(step=step, policy_version=policy_version, extra=extra or {})
        weights = self.weights(policy_id)
        return save_policy(Path(directory), state, weights, base=self._base, progress=progress)

    def load(
        self,
        policy_id: str,
        directory: str | Path,
        adapter: LoRA | FullParameters,
        *,
        fresh_optimizer: bool = False,
        value_head: bool = False,
        optimizer: AdamW = DEFAULT,
    ) -> CheckpointManifest:
        """Create a policy from a checkpoint, with its optimizer state or, for a new training run, without.

        A new training run (`fresh_optimizer`) with a value head uses the checkpoint's, if it has one. Raises
        ConflictError if the policy exists, and otherwise what `open_for` and `restore_policy` raise.
        """
        checkpoint = open_for(Path(directory), adapter, base=self._base)
        state = self._add(
            policy_id, adapter, model_dir=str(directory), value_head=value_head, optimizer=optimizer
        )
        try:
            restore_policy(checkpoint, state, fresh=fresh_optimizer)
        except BaseException:
            self.drop(policy_id)
            raise
        return checkpoint.manifest

    def drop(self, policy_id: str) -> None:
        """Remove a policy and free its memory."""
        state = self._policies[policy_id]
        with self._turns.whole():
            # Only while nothing computes: an adapter is a part of the base model.
            del self._policies[policy_id]
            state.policy.drop()
        if isinstance(state.policy, FullPolicy):
            # transformers' modules have reference cycles, which keep a model's memory until collected.
            del state
            gc.collect()

    def replace(self, policy_id: str, other_id: str) -> None:
        """Drop a policy and give its name to another; if one of the two does not exist, change nothing."""
        # Raises if there is none, before anything is dropped.
        _ = self._policies[other_id]
        self.drop(policy_id)
        self._policies[policy_id] = self._policies.pop(other_id)

    def rest(self) -> None:
        """Free the memory left by earlier calls; the next one allocates it again."""
        self._turns.rest()

    def _gradients(self, parts: Mapping[str, PolicyBatch]) -> dict[str, ForwardBackwardResult]:
        return forward_backward(
            parts, states=self._policies, limits=self.limits, runner=self._runner, turns=self._turns
        )

    def _add(
        self,
        policy_id: str,
        adapter: LoRA | FullParameters,
        *,
        seed: int = 0,
        model_dir: str | None = None,
        value_head: bool,
        optimizer: AdamW,
    ) -> TrainingState:
        with self._turns.whole():
            self._policies.require_new(policy_id)
            state = self._policies[policy_id] = self._factory.make(
                adapter, seed=seed, model_dir=model_dir, value_head=value_head, optimizer=optimizer
            )
            return state
