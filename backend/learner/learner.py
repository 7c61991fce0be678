"""The learner: policies on one base model, and the operations of training.

It handles token ids and tensors, not text, rewards, jobs or HTTP. Thread-safe: the device's lock is taken per
micro-batch, so several jobs and an engine can share the device, but calls for one policy must be sequential.
"""

from __future__ import annotations

import gc
import logging
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Unpack

import numpy as np
import numpy.typing as npt
import torch
from pydantic import JsonValue

from backend.compute.busy_clock import BusyClock
from backend.compute.device_lock import DeviceLock, computing_with
from backend.compute.memory import give_memory_back
from backend.compute.weights import PolicyWeights
from backend.fairness.fair_lock import FairLock
from backend.learner.activations import (
    MOST_PADDED_TOKENS,
    MOST_TOKENS,
    MicroBatching,
    micro_batching,
    room_for_activations,
)
from backend.learner.adapters import AdapterSet
from backend.learner.aggregation import token_weights
from backend.learner.batching import MicroBatch
from backend.learner.causal_lm import CausalLM
from backend.learner.checkpoints import CheckpointManifest
from backend.learner.image_sight import let_see
from backend.learner.optimiser import DEFAULT, OptimStepResult, PolicyOptimiser
from backend.learner.policies import FullPolicy, LoraPolicy, MasteredPolicy, Policy
from backend.learner.policy_checkpoints import (
    BaseModel,
    Progress,
    open_for,
    restore_policy,
    restore_value_head,
    save_policy,
)
from backend.learner.sequences import (
    BatchTotals,
    FloatArray,
    SampledTokens,
    TokenLimits,
    TrainSequence,
    check_sequences,
)
from backend.learner.spikes import LEAST_LOSS, SpikeWatch
from backend.learner.token_loss import TokenLoss
from backend.learner.train_pass import ForwardBackwardResult, TrainPass
from backend.learner.value_head import ValueHead, ValuePass
from backend.learner.worker_threads import Cores, WorkerThreads, whole_device
from backend.vision.pixels import ImageSource
from backend.vision.shared import SharedImages, shared
from tinkergym.errors import ConflictError, NonFiniteLossError, NotFoundError
from tinkergym.schema.jobs.parts import FullParameters, LoRA
from tinkergym.schema.optimizer import AdamW, OptimizerStep

_log = logging.getLogger(__name__)

_MOST_TRAINED = 10**8
"""Largest policy that several workers train; larger gradients are stored only once."""
_FEW = 10**7
"""Number of elements that one thread processes in some milliseconds."""


@dataclass(slots=True)
class _Entry:
    """A policy and its training state."""

    policy: LoraPolicy | FullPolicy
    optimiser: PolicyOptimiser
    value_head: ValueHead | None = None
    pending: bool = False
    """Whether there is an accumulated gradient."""
    losses: SpikeWatch = field(default_factory=SpikeWatch)
    grad_norms: SpikeWatch = field(default_factory=SpikeWatch)

    def forget_gradient(self) -> None:
        """Discard the accumulated gradient."""
        self.optimiser.clear()
        self.pending = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyBatch:
    """One policy's part of a call that trains several."""

    sequences: Sequence[TrainSequence]
    """The policy's training batch, or a part of it, with at least one sampled token."""
    loss: TokenLoss
    totals: BatchTotals | None = None
    """Totals of the policy's whole batch if `sequences` is a part of it."""


class _Pass(Protocol):
    """A computation over a batch, micro-batch by micro-batch."""

    def run(self, batch: MicroBatch, *, gradient: bool) -> Any:
        """Compute a micro-batch; several threads may do so at a time."""
        ...

    def add(self, found: Any) -> None:
        """Add what `run` returned, in the order of the micro-batches."""
        ...


@dataclass(frozen=True, slots=True)
class _Begun:
    """A policy's checked part, ready to compute."""

    entry: _Entry
    sequences: Sequence[TrainSequence]
    train_pass: TrainPass


class Learner:
    """Policies on one base model: create, train, copy, save, load and drop them."""

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
        images: ImageSource | SharedImages | None = None,
    ) -> None:
        """Load the base model.

        Args:
            model_dir: A Hugging Face model directory or hub id.
            device: torch device.
            dtype: Type of the base model, and of computation in full-parameter policies. Trained parameters
                are always float32.
            device_lock: Held while computing, one micro-batch at a time; None if nothing else uses the
                device. A worker acquires as many cores of a `DeviceLock` as it has threads.
            micro_batch_tokens: Most tokens computed at a time, which limits the memory. None uses as many as
                fit well; if these would be few, layers are computed twice instead.
            cpu_threads: Number of threads on a CPU. Divided among workers with separate micro-batches and
                gradients, if the model and the gradient's size allow it; 1 leaves torch's number unchanged.
            learners: Number of learners that share the machine's memory.
            images: Source of image files for a model with image support; None refuses images.

        Raises:
            UnknownModelError: The model cannot be loaded.
        """
        self._model_dir = str(model_dir)
        self.device = torch.device(device)
        self._dtype = dtype
        self._model_lock = FairLock()
        """Held while a policy's weights are in the base model, or are being changed."""
        self._lock = threading.Lock() if device_lock is None else device_lock
        self._workers = WorkerThreads(cpu_threads if self.device.type == "cpu" else 1)
        self._images = None if images is None else shared(images)
        self._base = CausalLM.load(model_dir, device=self.device, dtype=dtype)
        let_see(self._base, Path(model_dir), self._images)
        self._micro_batching = self._fitting(micro_batch_tokens, learners)
        if self._micro_batching.recompute:
            self._base.recompute_layers()
        self._base.model.requires_grad_(False)
        self._base_model = BaseModel(path=self._model_dir, fingerprint=self._base.fingerprint())
        self.parameter_count = sum(p.numel() for p in self._base.model.parameters())
        self._exact = dtype in {torch.float32, torch.float64}
        # Merging rounds to the weight's type: precise enough in float32, not in bfloat16.
        self._adapters = AdapterSet(self._base.model, merge=self._exact)
        self._policies: dict[str, _Entry] = {}
        self._created = 0
        self._clock = BusyClock()

    @property
    def model_fingerprint(self) -> str:
        """Fingerprint of the base model's weights, as in checkpoints."""
        return self._base_model.fingerprint

    @property
    def busy_seconds(self) -> float:
        """Seconds the learner worked, not counting waits for the device; grows monotonically.

        Measured from cutting a batch to its result; several threads at a time count once.
        """
        return self._clock.seconds

    @property
    def policy_ids(self) -> list[str]:
        """The existing policies, oldest first."""
        return list(self._policies)

    @property
    def limits(self) -> TokenLimits:
        """The model's limits."""
        return self._base.limits

    def create_policy(
        self,
        policy_id: str,
        adapter: LoRA | FullParameters,
        *,
        seed: int,
        value_head: bool = False,
        optimizer: AdamW = DEFAULT,
    ) -> None:
        """Add an untrained policy, which initially equals the base model.

        Args:
            policy_id: A new name.
            adapter: Which parameters are trained.
            seed: Seed for the adapter's initial weights.
            value_head: Whether it has a value head (initially 0).
            optimizer: Settings of the optimizer.

        Raises:
            ConflictError: A policy with this name exists.
            InvalidRequestError: The adapter names layers that the model does not have.
            MissingExtraError: The optimizer needs a package that is not installed.
        """
        self._add(
            policy_id,
            adapter,
            seed=seed,
            model_dir=self._model_dir,
            value_head=value_head,
            optimizer=optimizer,
        )

    def forward_backward(
        self,
        policy_id: str,
        sequences: Sequence[TrainSequence],
        loss: TokenLoss,
        *,
        totals: BatchTotals | None = None,
    ) -> ForwardBackwardResult:
        """Add the gradient of the batch's loss to the accumulated one.

        Sequences whose advantage is 0 everywhere have gradient 0: they only run forward, for their logprobs.

        Args:
            policy_id: An existing policy.
            sequences: The training batch or a part of it, with at least one sampled token.
            loss: The loss and aggregation.
            totals: Totals of the whole batch if `sequences` is a part of it.

        Raises:
            NotFoundError: There is no such policy.
            InvalidRequestError: A sequence cannot be trained on; nothing was computed.
            NonFiniteLossError: The loss is NaN or infinite. The accumulated gradient is discarded.
        """
        part = PolicyBatch(sequences=sequences, loss=loss, totals=totals)
        return self.forward_backward_many({policy_id: part})[policy_id]

    def forward_backward_many(self, parts: Mapping[str, PolicyBatch]) -> dict[str, ForwardBackwardResult]:
        """Add to the gradients of several policies, bitwise as if each trained alone.

        Their ranks, losses and batch sizes may differ, and full-parameter policies may be combined with
        adapters. The policies are computed one after the other on the shared base model: in a common row, a
        matrix product or the end of a vectorised loop may round a token differently than in a row of its own
        policy.

        Args:
            parts: The part of each policy.

        Returns:
            The result of each policy.

        Raises:
            NotFoundError: There is no such policy; nothing was computed.
            InvalidRequestError: A sequence cannot be trained on; nothing was computed.
            NonFiniteLossError: A loss is NaN or infinite. The accumulated gradients of all policies in the
                call are discarded.
        """
        with self._clock.working():
            begun = {policy_id: self._begin(policy_id, part) for policy_id, part in parts.items()}
        results: dict[str, ForwardBackwardResult] = {}
        try:
            for policy_id, work in begun.items():
                learned = work.train_pass.learned
                for only, gradient in ((learned, True), (~learned, False)):
                    self._run(
                        work.entry.policy, work.sequences, work.train_pass, only=only, gradient=gradient
                    )
                with self._clock.working():
                    results[policy_id] = _finite(policy_id, work.train_pass.result())
        except BaseException:
            # A partial gradient must not be mistaken for a complete one, nor some policies' for all.
            for work in begun.values():
                work.entry.forget_gradient()
            raise
        for policy_id, work in begun.items():
            work.entry.pending = True
            result = results[policy_id]
            result.metrics.update(work.entry.losses.look(result.loss, name="loss_spike", least=LEAST_LOSS))
        return results

    def has_gradient(self, policy_id: str) -> bool:
        """Return whether there is an accumulated gradient."""
        return self._entry(policy_id).pending

    def forget_gradient(self, policy_id: str) -> None:
        """Discard the accumulated gradient, if any."""
        self._entry(policy_id).forget_gradient()

    def optimizer_steps(self, policy_id: str) -> int:
        """Return how many optimiser steps the policy has taken."""
        return self._entry(policy_id).optimiser.steps

    def gradient(self, policy_id: str) -> dict[str, torch.Tensor]:
        """Return the accumulated gradient by parameter; the tensors are not copies.

        Without one, a gradient of zeros is created: a rank without sequences uses it to take part in a common
        step.

        Raises:
            NotFoundError: There is no such policy.
        """
        entry = self._entry(policy_id)
        entry.pending = True
        return entry.optimiser.gradient()

    def optim_step(self, policy_id: str, **settings: Unpack[OptimizerStep]) -> OptimStepResult:
        """Apply the accumulated gradient with AdamW and clear it; see `PolicyOptimiser.step`.

        Raises:
            NotFoundError: There is no such policy.
            ConflictError: There is no accumulated gradient.
            NonFiniteGradientError: The gradient is NaN or infinite; weights and optimizer state are
                untouched.
        """
        entry = self._entry(policy_id)
        if not entry.pending:
            raise ConflictError(
                f"policy {policy_id} has no gradient to apply", hint="call forward_backward before optim_step"
            )
        entry.pending = False
        with self._computing_own(_trained(entry.policy)):
            stepped = entry.optimiser.step(
                **settings,
            )
            if not stepped.skipped:
                entry.policy.updated()
        if not stepped.skipped:  # zeros would make any later gradient a spike
            stepped.metrics.update(entry.grad_norms.look(stepped.grad_norm, name="grad_norm_spike"))
        return stepped

    def logprobs(self, policy_id: str | None, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """Return the logprobs of the sampled tokens, per sequence in input order; None means the base model.

        Their `sampling_logprobs` and `advantage` are ignored.
        """
        policy = None if policy_id is None else self._entry(policy_id).policy
        check_sequences(self.limits, sequences)
        tokens = _unjudged(sequences)
        train_pass = TrainPass(policy.lm if policy else self._base, tokens, weights=None, loss=None)
        self._run(policy, sequences, train_pass, only=None, gradient=False)
        return train_pass.learner_logprobs

    def values(self, policy_id: str, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """Return the value head's prediction before each sampled token, per sequence in input order.

        One forward pass through the decoder. `sampling_logprobs` and `advantage` are ignored.

        Raises:
            NotFoundError: There is no such policy.
            ConflictError: It has no value head.
            InvalidRequestError: A sequence cannot be computed.
        """
        head, policy = self._value_head(policy_id), self._entry(policy_id).policy
        check_sequences(self.limits, sequences)
        value_pass = ValuePass(policy.lm, _unjudged(sequences), head)
        self._run(policy, sequences, value_pass, only=None, gradient=False)
        return value_pass.values

    def weights(self, policy_id: str) -> PolicyWeights:
        """Return a copy of the policy's weights, on the CPU."""
        entry = self._entry(policy_id)
        with self._computing_own(_trained(entry.policy)):
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
        """Write a checkpoint, atomically, from which `load` continues bitwise equal.

        An adapter can also be read by `peft.PeftModel.from_pretrained`, a full model by transformers.

        Args:
            policy_id: An existing policy without an accumulated gradient.
            directory: The target; its parent may only contain checkpoints of one policy.
            step: Completed training steps.
            policy_version: The engine's version number of these weights.
            extra: Data for the job to read back from the manifest.

        Raises:
            ConflictError: There is an accumulated gradient, which would be lost.
            StorageFullError: The disk is full; no partial files remain.
        """
        entry = self._savable(policy_id)
        return save_policy(
            Path(directory),
            entry.policy,
            self.weights(policy_id),
            entry.optimiser.state(),
            optimizer_steps=entry.optimiser.steps,
            base=self._base_model,
            progress=Progress(step=step, policy_version=policy_version, extra=extra or {}),
            value_head=entry.value_head,
        )

    def load(
        self,
        policy_id: str,
        directory: str | Path,
        adapter: LoRA | FullParameters,
        *,
        fresh_optimiser: bool = False,
        value_head: bool = False,
        optimizer: AdamW = DEFAULT,
    ) -> CheckpointManifest:
        """Create a policy from a checkpoint, with its optimizer state or, for a new training run, without.

        A new training run (`fresh_optimiser`) with a value head uses the checkpoint's, if it has one.

        Raises:
            CheckpointCorruptError: Its files differ from what was written.
            ConflictError: It belongs to a different base model or adapter, only one of the two has a value
                head, or the policy exists.
        """
        checkpoint = open_for(Path(directory), adapter, base=self._base_model)
        full = isinstance(adapter, FullParameters)
        model_dir = str(directory) if full else self._model_dir
        entry = self._add(
            policy_id, adapter, seed=0, model_dir=model_dir, value_head=value_head, optimizer=optimizer
        )
        try:
            if entry.value_head is not None:
                restore_value_head(checkpoint, entry.value_head, needed=not fresh_optimiser)
            restore_policy(checkpoint, entry.policy, None if fresh_optimiser else entry.optimiser)
        except BaseException:
            self.drop(policy_id)
            raise
        return checkpoint.manifest

    def drop(self, policy_id: str) -> None:
        """Remove a policy and free its memory.

        Raises:
            NotFoundError: There is no such policy.
        """
        entry = self._entry(policy_id)
        with self._computing():
            del self._policies[policy_id]
            entry.policy.drop()
        if isinstance(entry.policy, FullPolicy):
            # transformers' modules have reference cycles, which keep a model's memory until collected.
            del entry
            gc.collect()

    def replace(self, policy_id: str, other_id: str) -> None:
        """Drop a policy and give its name to another.

        Raises:
            NotFoundError: There is no such policy; nothing was changed.
        """
        self._entry(other_id)
        self.drop(policy_id)
        self._policies[policy_id] = self._policies.pop(other_id)

    def rest(self) -> None:
        """Free the memory left by earlier calls; the next one allocates it again."""
        give_memory_back()
        if self.device.type == "cuda":
            with self._lock:  # while the engine records a step, nothing may be freed
                torch.cuda.empty_cache()

    def _begin(self, policy_id: str, part: PolicyBatch) -> _Begun:
        """Check what can be checked before computing."""
        entry = self._entry(policy_id)
        tokens = SampledTokens.of(part.sequences)
        check_sequences(self.limits, part.sequences)
        weights = token_weights(
            tokens.counts,
            part.loss.aggregation,
            totals=part.totals or BatchTotals.of(part.sequences),
            constant_tokens=part.loss.constant_tokens,
        )
        workers = self._workers_for(entry.policy)
        computed = [
            *entry.policy.computed,
            *(entry.value_head.parameters.values() if entry.value_head else ()),
        ]
        beside = workers > 1 or isinstance(entry.policy, MasteredPolicy)
        train_pass = TrainPass(
            entry.policy.lm,
            tokens,
            weights=weights,
            loss=part.loss,
            aside=computed if beside else (),
            into=entry.optimiser.parameters if beside else (),
            workers=workers,
            value_head=entry.value_head,
        )
        return _Begun(entry, part.sequences, train_pass)

    def _entry(self, policy_id: str) -> _Entry:
        try:
            return self._policies[policy_id]
        except KeyError:
            raise NotFoundError(
                f"the learner has no policy {policy_id}", hint="create or load it first"
            ) from None

    def _value_head(self, policy_id: str) -> ValueHead:
        head = self._entry(policy_id).value_head
        if head is None:
            raise ConflictError(
                f"policy {policy_id} has no value head", hint="create or load it with value_head=True"
            )
        return head

    def _savable(self, policy_id: str) -> _Entry:
        entry = self._entry(policy_id)
        if entry.pending:
            raise ConflictError(
                f"policy {policy_id} has an accumulated gradient, which a checkpoint would lose",
                hint="call optim_step first",
            )
        return entry

    def _full_policy(self, model_dir: str, adapter: FullParameters) -> FullPolicy:
        lm = self._own_model(model_dir, self._dtype)
        if self._exact:
            return FullPolicy(lm, adapter)
        masters = self._own_model(model_dir, torch.float32).model.named_parameters()
        return MasteredPolicy(lm, adapter, {name: master.detach().clone() for name, master in masters})

    def _own_model(self, model_dir: str, dtype: torch.dtype) -> CausalLM:
        own = CausalLM.load(model_dir, device=self.device, dtype=dtype)
        let_see(own, Path(self._model_dir), self._images)
        if self._micro_batching.recompute:
            own.recompute_layers()
        return own

    def _add(
        self,
        policy_id: str,
        adapter: LoRA | FullParameters,
        *,
        seed: int,
        model_dir: str,
        value_head: bool,
        optimizer: AdamW,
    ) -> _Entry:
        with self._computing():
            if policy_id in self._policies:
                raise ConflictError(f"the learner already has a policy {policy_id}", hint="drop it first")
            policy: LoraPolicy | FullPolicy
            if isinstance(adapter, LoRA):
                name = f"policy_{self._created}"  # not the id: module names must not contain dots
                policy = LoraPolicy(self._base, self._adapters, name, adapter, seed=seed)
            else:
                policy = self._full_policy(model_dir, adapter)
            self._created += 1
            try:
                head = ValueHead(policy.lm.hidden_size, device=self.device) if value_head else None
                optimiser = PolicyOptimiser(policy.parameters, head.parameters if head else None, optimizer)
            except BaseException:
                policy.drop()
                raise
            entry = _Entry(policy, optimiser, head)
            self._policies[policy_id] = entry
            return entry

    def _fitting(self, tokens: int | None, learners: int) -> MicroBatching:
        if tokens is not None:
            return MicroBatching(tokens=tokens, recompute=False)
        each = self._base.kept_bytes_per_token()
        found = micro_batching(
            each,
            layers=self._base.layer_count,
            bytes_between_layers=self._base.hidden_size * self._dtype.itemsize,
            room=room_for_activations(self.device) // learners,
            most=MOST_TOKENS if self._base.shares_prefixes else MOST_PADDED_TOKENS,
        )
        _log.info(
            "a token needs %d bytes for the backward pass: %d tokens at a time%s",
            each,
            found.tokens,
            ", with layers computed twice" if found.recompute else "",
        )
        return found

    def _workers_for(self, policy: Policy) -> int:
        """Return how many workers train a policy: each has a separate gradient."""
        return (
            self._workers.count if _trained(policy) <= _MOST_TRAINED and policy.lm.can_run_in_parallel else 1
        )

    @contextmanager
    def _computing(self) -> Iterator[None]:
        with self._model_lock, self._lock, self._clock.working():
            yield

    @contextmanager
    def _computing_own(self, numbers: int) -> Iterator[None]:
        """Like `_computing`, for operations on a policy's own tensors only.

        They involve few numbers at once, and run next to other computation.
        """
        if isinstance(self._lock, DeviceLock) and self.device.type == "cpu" and numbers <= _FEW:
            with computing_with(1), self._clock.working():
                yield
        else:
            with self._computing():
                yield

    @contextmanager
    def _computing_threads_of(self, batches: Sequence[MicroBatch]) -> Iterator[Cores]:
        """Like `_computing`; if each worker can acquire its own cores, return how."""
        lock = self._lock
        if not isinstance(lock, DeviceLock) or not self._workers.share(batches):
            with self._computing():
                yield whole_device
            return

        @contextmanager
        def cores(count: int) -> Iterator[None]:
            with lock.cores(count), self._clock.working():
                yield

        with self._model_lock:
            yield cores

    def _run(
        self,
        policy: Policy | None,
        sequences: Sequence[TrainSequence],
        train_pass: _Pass,
        *,
        only: npt.NDArray[np.bool_] | None,
        gradient: bool,
    ) -> None:
        """Run some of the sequences under a policy, or the base model; others may compute in between."""
        lm = policy.lm if policy else self._base
        workers = self._workers_for(policy) if policy else self._workers.count
        with self._clock.working():
            batches = lm.batches(
                sequences, max_tokens=self._micro_batching.tokens, only=only, workers=workers
            )
        if policy and batches:
            # An adapter is merged into a copy of the base model's weights.
            with self._computing_own(self.parameter_count):
                policy.prepare()
        try:
            work = partial(train_pass.run, gradient=gradient)
            turns = policy.turns(len(batches)) if policy else len(batches)
            for together in batches:
                self._look_at(policy, together)
                with self._computing_threads_of(together) as cores, self._using(policy):
                    for found in self._workers.run(work, together, cores):
                        train_pass.add(found)
            for _ in range(turns - len(batches)):
                assert policy is not None
                with self._computing():
                    policy.idle(gradient=gradient)
        finally:
            if policy:
                policy.release()

    def _look_at(self, policy: Policy | None, batches: Sequence[MicroBatch]) -> None:
        """Compute the features of micro-batches' images with all threads, before each worker uses its own."""
        hashes = list(dict.fromkeys(sha256 for batch in batches for sha256, _ in batch.images))
        if hashes:
            with self._computing(), self._using(policy):
                (policy.lm if policy else self._base).look_at(hashes)

    @contextmanager
    def _using(self, policy: Policy | None) -> Iterator[None]:
        """Load the weights of a policy, or the base model's, into its model."""
        if policy is not None:
            with policy.using():
                yield
        else:
            with self._adapters.using(None), self._base.tower_at_rest(True):
                yield


def _trained(policy: Policy) -> int:
    return sum(parameter.numel() for parameter in policy.parameters.values())


def _unjudged(sequences: Sequence[TrainSequence]) -> SampledTokens:
    """Return the sampled tokens of sequences, without further data."""
    counts = np.asarray([np.count_nonzero(sequence.loss_mask) for sequence in sequences])
    blank = np.zeros(counts.sum(), dtype=np.float32)
    return SampledTokens(counts=counts, sampling_logprobs=blank, advantages=blank)


def _finite(policy_id: str, result: ForwardBackwardResult) -> ForwardBackwardResult:
    if math.isfinite(result.loss):
        return result
    lost = [i for i, logprobs in enumerate(result.learner_logprobs) if not np.isfinite(logprobs).all()]
    if lost:
        why = (
            f"the model's logprobs of {len(lost)} sequences are not finite, the first being sequence "
            f"{lost[0]}"
        )
        hint = "the weights have diverged: resume from an earlier checkpoint with a lower learning_rate"
    else:
        why = (
            f"its importance ratios overflow: learner and sampling logprobs differ by up to "
            f"{result.metrics['logprob_gap_max']:.3g} nats"
        )
        hint = "check for sampling logprobs of a different policy, or extreme advantages"
    raise NonFiniteLossError(
        f"the loss of policy {policy_id} is {result.loss}, and its accumulated gradient was dropped: {why}",
        hint=hint,
    )
