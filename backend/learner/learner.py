"""The learner: policies on one base model, and the four things that training does to them.

Knows token ids and tensors; not text, rewards, jobs or HTTP. Thread-safe: the device's lock is taken per
micro-batch, so several jobs and an engine can share the device, but calls for one policy must come one after
the other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import JsonValue

from backend.learner.adapters import AdapterSet
from backend.learner.aggregation import token_weights
from backend.learner.batching import MicroBatch
from backend.learner.causal_lm import CausalLM, sampled_logprobs
from backend.learner.checkpoints import Checkpoint, CheckpointManifest, writing
from backend.learner.losses import LossConfig, clipped_policy_loss
from backend.learner.optimiser import OptimStepResult, PolicyOptimiser
from backend.learner.policies import FullPolicy, LoraPolicy, Policy, restore
from backend.learner.sequences import BatchTotals, FloatArray, SampledTokens, TrainSequence
from backend.weights import PolicyWeights, weights_sha256
from tinkergym.errors import CheckpointCorruptError, ConflictError, InvalidRequestError, NotFoundError
from tinkergym.wire import FullParameters, LoRA

_HEAD_ELEMENTS = 2**22
"""Most logits that exist at once, so that memory does not grow with the vocabulary."""
_HEAD_ROWS = 256
"""Rows of logits that are computed at once at the least; fewer would make slow matrix products."""
_WEIGHTS_FILE = {"lora": "adapter_model.safetensors", "full": "model.safetensors"}
_OPTIMIZER_FILE = "optimizer.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBackwardResult:
    """What a batch said under the weights before the next optimiser step."""

    loss: float
    learner_logprobs: list[FloatArray]
    """Per sequence, in input order: one per sampled token, in nats at the sequence's temperature."""
    metrics: dict[str, float]
    """clip_fraction, ratio_mean, logprob_gap_max, logprob_gap_mean (learner against sampling),
    sampled_entropy, shared_fraction (of the input tokens that did not have to be computed)."""


@dataclass(slots=True)
class _Entry:
    """A policy and what training it needs."""

    policy: Policy
    optimiser: PolicyOptimiser
    pending: bool = False
    """Whether a gradient waits for `optim_step`."""


@dataclass(slots=True)
class _Sampled:
    """The sampled tokens of a train batch as tensors, and what the forward passes find out about each."""

    sampling_logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor
    learner_logprobs: FloatArray
    clipped: int = 0
    input_tokens: int = 0
    computed_tokens: int = 0
    loss: float = 0.0
    config: LossConfig = field(default_factory=LossConfig)


class Learner:
    """Policies on one base model: made, trained, copied out, saved, loaded, dropped."""

    def __init__(
        self,
        model_dir: str | Path,
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        device_lock: AbstractContextManager[Any] | None = None,
        micro_batch_tokens: int = 2048,
    ) -> None:
        """Load the base model.

        Args:
            model_dir: A Hugging Face model directory or hub id.
            device: Of torch.
            dtype: Of the base model and of full-parameter policies; adapters are always float32.
            device_lock: Held while computing, one micro-batch at a time; None if nothing else uses the
                device.
            micro_batch_tokens: Most tokens in one forward pass; this bounds the memory.

        Raises:
            UnknownModelError: There is no model that can be loaded.
        """
        self._model_dir = str(model_dir)
        self._device = torch.device(device)
        self._dtype = dtype
        self._lock = threading.Lock() if device_lock is None else device_lock
        self._micro_batch_tokens = micro_batch_tokens
        self._base = CausalLM.load(model_dir, device=self._device, dtype=dtype)
        self._base.model.requires_grad_(False)
        self.model_fingerprint = self._base.fingerprint()
        """Tells base models apart; stands in every checkpoint."""
        self.parameter_count = sum(p.numel() for p in self._base.model.parameters())
        # Merging rounds to the weight's type: exact enough in float32, not in bfloat16.
        self._adapters = AdapterSet(self._base.model, merge=dtype == torch.float32)
        self._policies: dict[str, _Entry] = {}
        self._created = 0
        self._busy_seconds = 0.0

    @property
    def busy_seconds(self) -> float:
        """Seconds in which the learner computed, waiting for the device excluded; grows monotonically."""
        return self._busy_seconds

    @property
    def policy_ids(self) -> list[str]:
        """The policies that exist, oldest first."""
        return list(self._policies)

    def create_policy(self, policy_id: str, adapter: LoRA | FullParameters, *, seed: int) -> None:
        """Add an untrained policy: it answers exactly as the base model does.

        Raises:
            ConflictError: There is one of this name.
        """
        self._add(policy_id, adapter, seed=seed, model_dir=self._model_dir)

    def forward_backward(
        self,
        policy_id: str,
        sequences: Sequence[TrainSequence],
        loss: LossConfig,
        *,
        totals: BatchTotals | None = None,
    ) -> ForwardBackwardResult:
        """Add the gradient of the batch's loss to what waits for `optim_step`.

        Sequences whose advantage is 0 everywhere have gradient 0: they are only run forward, for their
        logprobs.

        Args:
            policy_id: Of an existing policy.
            sequences: The train batch, or a part of it; at least one sampled token.
            loss: Which loss and aggregation.
            totals: Of the whole batch if `sequences` is a part of it.

        Raises:
            NotFoundError: There is no such policy.
            InvalidRequestError: A sequence cannot be trained on; nothing was computed.
        """
        entry = self._entry(policy_id)
        tokens = SampledTokens.of(sequences)
        self._check(sequences, len(tokens.sampling_logprobs))
        weights = token_weights(
            tokens.counts,
            loss.aggregation,
            totals=totals or BatchTotals.of(sequences),
            constant_tokens=loss.constant_tokens,
        )
        sampled = self._sampled(tokens, weights, loss)
        learned = np.asarray([bool(part.any()) for part in tokens.split(tokens.advantages)], dtype=bool)
        try:
            self._run(entry, sequences, sampled, only=learned, gradient=True)
            self._run(entry, sequences, sampled, only=~learned, gradient=False)
        except BaseException:
            # Half a batch's gradient must not be taken for a whole one.
            entry.optimiser.clear()
            entry.pending = False
            raise
        entry.pending = True
        return ForwardBackwardResult(
            loss=sampled.loss,
            learner_logprobs=tokens.split(sampled.learner_logprobs),
            metrics=_metrics(tokens, sampled),
        )

    def optim_step(
        self,
        policy_id: str,
        *,
        learning_rate: float,
        max_grad_norm: float = 1.0,
        weight_decay: float = 0.0,
    ) -> OptimStepResult:
        """Apply the accumulated gradient with AdamW and clear it.

        Raises:
            NotFoundError: There is no such policy.
            ConflictError: No gradient waits.
            NonFiniteGradientError: The gradient is NaN or infinite; weights and optimizer state are
                untouched.
        """
        entry = self._entry(policy_id)
        if not entry.pending:
            raise ConflictError(
                f"policy {policy_id} has no gradient to apply", hint="call forward_backward before optim_step"
            )
        entry.pending = False
        with self._computing():
            return entry.optimiser.step(
                learning_rate=learning_rate, max_grad_norm=max_grad_norm, weight_decay=weight_decay
            )

    def logprobs(self, policy_id: str | None, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """Return the logprobs of the sampled tokens, per sequence in input order; None asks the base model.

        Their `sampling_logprobs` and `advantage` are not looked at.
        """
        counts = [int(np.count_nonzero(sequence.loss_mask)) for sequence in sequences]
        self._check(sequences, sum(counts))
        blank = np.zeros(sum(counts), dtype=np.float32)
        tokens = SampledTokens(counts=np.asarray(counts), sampling_logprobs=blank, advantages=blank)
        sampled = self._sampled(tokens, blank, LossConfig())
        entry = None if policy_id is None else self._entry(policy_id)
        self._run(entry, sequences, sampled, only=None, gradient=False)
        return tokens.split(sampled.learner_logprobs)

    def weights(self, policy_id: str) -> PolicyWeights:
        """Return a copy of the policy's weights, on the CPU."""
        entry = self._entry(policy_id)
        with self._computing():
            return entry.policy.weights()

    def save(
        self,
        policy_id: str,
        directory: str | Path,
        *,
        step: int,
        policy_version: int,
        extra: Mapping[str, JsonValue] | None = None,
    ) -> CheckpointManifest:
        """Write a checkpoint that `load` continues from to the bit, whole or not at all.

        An adapter can also be read by `peft.PeftModel.from_pretrained`, a full model by transformers.

        Args:
            policy_id: Of an existing policy, without a waiting gradient.
            directory: Where it will appear; only checkpoints of one policy may stand beside it.
            step: Train steps done.
            policy_version: What the engine calls these weights.
            extra: What the job wants back from the manifest.

        Raises:
            ConflictError: A gradient waits; it would be lost.
            StorageFullError: No space left; nothing was left behind.
        """
        entry = self._entry(policy_id)
        if entry.pending:
            raise ConflictError(
                f"policy {policy_id} has a gradient that a checkpoint would lose",
                hint="call optim_step first",
            )
        weights = self.weights(policy_id)
        policy = entry.policy
        weights_file = _WEIGHTS_FILE[policy.adapter.kind]
        with writing(Path(directory)) as writer:
            if isinstance(policy, LoraPolicy):
                writer.add_tensors(weights_file, weights.tensors)
                writer.add_json("adapter_config.json", policy.peft_config(base_model=self._model_dir))
            else:
                # transformers knows how each family is stored: tied and fused weights, and a config to match.
                policy.lm.model.save_pretrained(writer.directory, max_shard_size="1000GB")
            writer.add_tensors(_OPTIMIZER_FILE, entry.optimiser.state())
            return writer.finish(
                step=step,
                policy_version=policy_version,
                adapter=policy.adapter,
                model_fingerprint=self.model_fingerprint,
                optimizer_steps=entry.optimiser.steps,
                weights_file=weights_file,
                weights_sha256=weights_sha256(weights),
                extra=dict(extra or {}),
            )

    def load(
        self, policy_id: str, directory: str | Path, adapter: LoRA | FullParameters
    ) -> CheckpointManifest:
        """Create a policy from a checkpoint, with its optimizer state.

        Raises:
            CheckpointCorruptError: Its files are not those that were written.
            ConflictError: It belongs to another base model or adapter, or the policy exists.
        """
        checkpoint = Checkpoint.open(directory)
        manifest = checkpoint.manifest
        if manifest.adapter != adapter:
            raise ConflictError(
                f"checkpoint {directory} holds {manifest.adapter!r}, the job asks for {adapter!r}",
                field="adapter",
            )
        if manifest.model_fingerprint != self.model_fingerprint:
            raise ConflictError(
                f"checkpoint {directory} was made with another base model than {self._model_dir}",
                hint="serve the model that the job began with, under the same name",
                field="model",
            )
        full = manifest.adapter.kind == "full"
        entry = self._add(policy_id, adapter, seed=0, model_dir=str(directory) if full else self._model_dir)
        try:
            if not full:
                _restore_adapter(entry.policy, checkpoint)
            _verify(entry.policy, checkpoint)
            entry.optimiser.restore(checkpoint.tensors(_OPTIMIZER_FILE), steps=manifest.optimizer_steps)
        except BaseException:
            self.drop(policy_id)
            raise
        return manifest

    def drop(self, policy_id: str) -> None:
        """Forget a policy and free its memory.

        Raises:
            NotFoundError: There is no such policy.
        """
        entry = self._entry(policy_id)
        with self._computing():
            del self._policies[policy_id]
            entry.policy.drop()

    def _entry(self, policy_id: str) -> _Entry:
        try:
            return self._policies[policy_id]
        except KeyError:
            raise NotFoundError(
                f"the learner has no policy {policy_id}", hint="create or load it first"
            ) from None

    def _add(self, policy_id: str, adapter: LoRA | FullParameters, *, seed: int, model_dir: str) -> _Entry:
        with self._computing():
            if policy_id in self._policies:
                raise ConflictError(f"the learner already has a policy {policy_id}", hint="drop it first")
            policy: Policy
            if isinstance(adapter, LoRA):
                name = f"policy_{self._created}"  # not the id: module names allow no dots
                policy = LoraPolicy(self._base, self._adapters, name, adapter, seed=seed)
            else:
                policy = FullPolicy(CausalLM.load(model_dir, device=self._device, dtype=self._dtype), adapter)
            self._created += 1
            entry = _Entry(policy, PolicyOptimiser(policy.parameters))
            self._policies[policy_id] = entry
            return entry

    @contextmanager
    def _computing(self) -> Iterator[None]:
        with self._lock:
            started = time.perf_counter()
            try:
                yield
            finally:
                self._busy_seconds += time.perf_counter() - started

    def _check(self, sequences: Sequence[TrainSequence], sampled_tokens: int) -> None:
        if not sampled_tokens:
            raise InvalidRequestError(
                "the batch has no sampled token to learn from", hint="skip the step", field="loss_mask"
            )
        # Out of range, an id would read foreign memory or stop the whole device.
        lowest = min(min(sequence.token_ids, default=0) for sequence in sequences)
        highest = max(max(sequence.token_ids, default=0) for sequence in sequences)
        if lowest < 0 or highest >= self._base.vocabulary:
            raise InvalidRequestError(
                f"token ids go from {lowest} to {highest}, the model's from 0 to {self._base.vocabulary - 1}",
                hint="render the prompts with this model's tokenizer",
                field="token_ids",
            )

    def _sampled(self, tokens: SampledTokens, weights: FloatArray, loss: LossConfig) -> _Sampled:
        return _Sampled(
            sampling_logprobs=torch.from_numpy(tokens.sampling_logprobs).to(self._device),
            advantages=torch.from_numpy(tokens.advantages).to(self._device),
            weights=torch.from_numpy(weights).to(self._device),
            learner_logprobs=np.zeros(len(weights), dtype=np.float32),
            config=loss,
        )

    def _run(
        self,
        entry: _Entry | None,
        sequences: Sequence[TrainSequence],
        sampled: _Sampled,
        *,
        only: Any,
        gradient: bool,
    ) -> None:
        """Run some of the sequences forward, and back if `gradient`, and note what is found in `sampled`."""
        lm = self._base if entry is None else entry.policy.lm
        batches = lm.batches(sequences, max_tokens=self._micro_batch_tokens, only=only)
        if not batches:
            return
        if entry is not None:
            with self._computing():
                entry.policy.prepare()
        try:
            for batch in batches:
                sampled.input_tokens += batch.input_tokens
                sampled.computed_tokens += len(batch.token_ids) if lm.shares_prefixes else batch.node_of.size
                using = self._adapters.using(None) if entry is None else entry.policy.using()
                with self._computing(), using, torch.set_grad_enabled(gradient):
                    _run_micro_batch(lm, batch, sampled, gradient=gradient)
        finally:
            if entry is not None:
                entry.policy.release()


def _run_micro_batch(lm: CausalLM, batch: MicroBatch, sampled: _Sampled, *, gradient: bool) -> None:
    features = lm.features(batch)
    # The head runs on a detached copy, some rows at a time: its gradient is collected there and then sent
    # through the decoder once, so never more than a slice of the logits exists.
    leaf = features.detach().requires_grad_(gradient)
    rows = max(_HEAD_ROWS, _HEAD_ELEMENTS // lm.vocabulary)
    all_ones = bool((batch.temperatures == 1.0).all())
    for start in range(0, len(batch.predictions), rows):
        stop = min(start + rows, len(batch.predictions))
        first, last = np.searchsorted(batch.prediction_of, [start, stop])
        temperatures = None if all_ones else torch.from_numpy(batch.temperatures[start:stop]).to(lm.device)
        table = sampled_logprobs(lm.logits(leaf[start:stop]), temperatures)
        drawn_from = torch.from_numpy(batch.prediction_of[first:last] - start).to(lm.device)
        targets = torch.from_numpy(batch.targets[first:last]).to(lm.device)
        logprobs = table[drawn_from, targets]
        sampled.learner_logprobs[batch.slots[first:last]] = logprobs.detach().cpu().numpy()
        if gradient:
            slots = torch.from_numpy(batch.slots[first:last]).to(lm.device)
            losses, clipped = clipped_policy_loss(
                logprobs,
                sampled.sampling_logprobs[slots],
                sampled.advantages[slots],
                clip_low=sampled.config.clip_low,
                clip_high=sampled.config.clip_high,
            )
            loss = (losses * sampled.weights[slots]).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            sampled.loss += float(loss.detach())
            sampled.clipped += int(clipped.sum())
    if gradient:
        features.backward(leaf.grad)  # type: ignore[no-untyped-call]


def _metrics(tokens: SampledTokens, sampled: _Sampled) -> dict[str, float]:
    learner, sampling = (
        sampled.learner_logprobs.astype(np.float64),
        tokens.sampling_logprobs.astype(np.float64),
    )
    gap = learner - sampling
    return {
        "clip_fraction": sampled.clipped / len(gap),
        "ratio_mean": float(np.exp(np.minimum(gap, 80.0)).mean()),  # stays a finite number, as events must be
        "logprob_gap_max": float(np.abs(gap).max()),
        "logprob_gap_mean": float(np.abs(gap).mean()),
        "sampled_entropy": float(-learner.mean()),
        "shared_fraction": 1.0 - sampled.computed_tokens / sampled.input_tokens,
    }


def _verify(policy: Policy, checkpoint: Checkpoint) -> None:
    if weights_sha256(policy.weights()) != checkpoint.manifest.weights_sha256:
        raise CheckpointCorruptError(
            f"the weights read from {checkpoint.directory} are not those that were saved: their hash differs",
            hint="load it with the versions of torch and transformers that wrote it",
        )


def _restore_adapter(policy: Policy, checkpoint: Checkpoint) -> None:
    tensors = checkpoint.tensors(_WEIGHTS_FILE["lora"])
    expected = {name: p.shape for name, p in policy.parameters.items()}
    if {name: tensor.shape for name, tensor in tensors.items()} != expected:
        raise ConflictError(f"the adapter in {checkpoint.directory} does not fit the model's layers")
    restore(policy, tensors)
