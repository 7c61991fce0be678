"""Data parallelism: one policy trained by several processes, each with the model and a part of the batch.

Every rank computes its part normalised over the whole batch; before an optimiser step the gradients are
summed over all ranks, so each takes the same step and all copies stay bitwise equal. A large full-parameter
policy is not copied: each rank stores and updates a part of it. The group has the interface of one `Learner`.
A rank that dies or hangs ends the group with a specific error.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np
import torch
from pydantic import JsonValue

from backend.compute.weights import PolicyWeights
from backend.errors import RankLostError
from backend.learner.checkpoints import CheckpointManifest
from backend.learner.optimiser import DEFAULT, OptimStepResult
from backend.learner.rank import RankOptions
from backend.learner.rank_group import Call, RankGroup
from backend.learner.rank_process import StartRanks, child_ranks
from backend.learner.sequences import (
    BatchTotals,
    FloatArray,
    SampledTokens,
    TokenLimits,
    TrainSequence,
    check_sequences,
)
from backend.learner.shards import shards
from backend.learner.spikes import LEAST_LOSS, SpikeWatch
from backend.learner.token_loss import TokenLoss
from backend.learner.train_pass import BatchPart, ForwardBackwardResult, metrics_over_parts
from backend.vision.pixels import ImageSource
from tinkergym.errors import InvalidRequestError, NonFiniteGradientError, TinkerGymError
from tinkergym.schema.jobs.parts import FullParameters, LoRA
from tinkergym.schema.optimizer import AdamW, OptimizerStep

_log = logging.getLogger(__name__)
_LOSS_SPIKE = "loss_spike"


class DataParallelLearner:
    """Ranks on one machine that train like one `Learner`.

    Thread-safe: calls for several policies wait for each other, because each call uses all ranks.
    """

    def __init__(
        self,
        model_dir: str | Path,
        *,
        ranks: int,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        micro_batch_tokens: int | None = None,
        threads_per_rank: int = 1,
        silence_seconds: float = 1800.0,
        divide_from: int = 10**8,
        start_ranks: StartRanks = child_ranks,
        folder: Path | None = None,
        images: ImageSource | None = None,
    ) -> None:
        """Start the ranks and wait until each has loaded the model.

        Args:
            model_dir: As for `Learner`.
            ranks: Number of processes.
            device: `cpu` (communication by gloo) or `cuda` (by NCCL; rank i uses device i).
            dtype: As for `Learner`.
            micro_batch_tokens: For each rank, as for `Learner`.
            threads_per_rank: torch threads; a total above the machine's cores slows down every rank.
            silence_seconds: A rank that takes longer for a call counts as lost.
            divide_from: Full-parameter policies with at least this many parameters are divided over the
                ranks. For smaller ones that would save less than 2 GB, but each layer costs some messages.
            start_ranks: Starts the processes.
            folder: Where they may put their rendezvous file; None uses the system's temporary folder.
            images: Source of image files for a model with image support; it is sent to each rank.

        Raises:
            UnknownModelError: The model cannot be loaded.
            RankLostError: A rank ended before it was ready.
        """
        if ranks < 1:
            raise InvalidRequestError(
                f"ranks must be at least 1, not {ranks}", hint="pass 1 or more", field="ranks"
            )
        self._losses: defaultdict[str, SpikeWatch] = defaultdict(SpikeWatch)
        self._meeting = tempfile.TemporaryDirectory(prefix="ranks-", dir=folder)
        options = RankOptions(
            ranks=ranks,
            folder=self._meeting.name,
            model_dir=str(model_dir),
            device=device,
            dtype=dtype,
            micro_batch_tokens=micro_batch_tokens,
            threads=threads_per_rank,
            silence_seconds=silence_seconds,
            divide_from=divide_from,
            images=images,
        )
        self._count = ranks
        self._divided: dict[str, bool] = {}
        """Every policy, and whether it is divided over the ranks."""
        self._group = RankGroup(silence_seconds=silence_seconds)
        try:
            self._group.take(start_ranks(options))
            self._limits: TokenLimits = self._group.ask_first("limits")
            self.model_fingerprint: str = self._group.ask_first("model_fingerprint")
            """See `Learner.model_fingerprint`."""
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the ranks, in order."""
        return self._group.process_ids

    @property
    def limits(self) -> TokenLimits:
        """The model's limits."""
        return self._limits

    @property
    def policy_ids(self) -> list[str]:
        """The existing policies, oldest first."""
        ids: list[str] = self._group.ask_first("policy_ids")
        return ids

    @property
    def busy_seconds(self) -> float:
        """Seconds in which the ranks worked on a call; grows monotonically."""
        return self._group.busy_seconds

    @property
    def broken(self) -> bool:
        """Whether a rank was lost; every call then raises RankLostError."""
        return self._group.broken

    def create_policy(
        self,
        policy_id: str,
        adapter: LoRA | FullParameters,
        *,
        seed: int,
        value_head: bool = False,
        optimizer: AdamW = DEFAULT,
    ) -> None:
        """Add an untrained policy; see `Learner.create_policy`."""
        self._add("create_policy", policy_id, adapter, seed=seed, value_head=value_head, optimizer=optimizer)

    def forward_backward(
        self,
        policy_id: str,
        sequences: Sequence[TrainSequence],
        loss: TokenLoss,
        *,
        totals: BatchTotals | None = None,
    ) -> ForwardBackwardResult:
        """Add the gradient of the batch's loss to the accumulated one; see `Learner`.

        Each rank gets a part of the sequences, or none if there are too few.

        Raises:
            RankLostError: A rank died or stopped responding.
            TinkerGymError: As `Learner.forward_backward`. The policy's accumulated gradient is discarded.
        """
        counts = SampledTokens.of(sequences).counts  # also refuses what no rank could index correctly
        # Checked here, because a rank that refuses its part would leave the others waiting.
        check_sequences(self._limits, sequences)
        totals = totals or BatchTotals.of(sequences)
        parts = shards(sequences, self._count)
        with self._group.calling():
            try:
                working, found = self._on_parts(
                    "forward_backward", policy_id, sequences, parts, loss, totals=totals
                )
            except RankLostError:
                raise
            except TinkerGymError:
                # Some ranks have their part of a gradient whose other parts do not exist.
                with contextlib.suppress(TinkerGymError):
                    self.forget_gradient(policy_id)
                raise
        merged = _merged([parts[number] for number in working], found, counts)
        spike = self._losses[policy_id].look(merged.loss, name=_LOSS_SPIKE, least=LEAST_LOSS)
        merged.metrics.update(spike)
        return merged

    def has_gradient(self, policy_id: str) -> bool:
        """Return whether there is an accumulated gradient."""
        return any(self._group.ask_all("has_gradient", policy_id))

    def forget_gradient(self, policy_id: str) -> None:
        """Discard the accumulated gradient on all ranks."""
        self._group.ask_all("forget_gradient", policy_id)

    def gradient(self, policy_id: str) -> dict[str, torch.Tensor]:
        """Return a copy of the accumulated gradient, summed over the ranks, by parameter."""
        summed: dict[str, torch.Tensor] = self._group.ask_all("summed_gradient", policy_id)[0]
        return summed

    def optim_step(self, policy_id: str, **settings: Unpack[OptimizerStep]) -> OptimStepResult:
        """Sum the gradients over the ranks and take the same step on each; see `Learner.optim_step`.

        Raises:
            RankLostError: A rank died or stopped responding, or the ranks no longer have the same gradient.
            NonFiniteGradientError: As `Learner.optim_step`, on every rank.
        """
        with self._group.calling():
            try:
                found: list[OptimStepResult] = self._group.ask_all(
                    "optim_step",
                    policy_id,
                    **settings,
                )
            except NonFiniteGradientError as error:
                taken = self._group.ask_all("optimizer_steps", policy_id)
                if len(set(taken)) > 1:
                    why = f"a rank refused a gradient ({error}) that another applied: they took {taken} steps"
                    raise self._group.give_up(why) from error
                raise
        norms = [result.grad_norm for result in found]
        if len(set(norms)) > 1:
            raise self._group.give_up(f"the ranks' summed gradients have different norms: {norms}")
        return found[0]

    def logprobs(self, policy_id: str | None, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """Return the logprobs of the sampled tokens, per sequence in input order; see `Learner.logprobs`."""
        return self._per_sequence("logprobs", policy_id, sequences)

    def values(self, policy_id: str, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """Return the value head's prediction before each sampled token; see `Learner.values`."""
        return self._per_sequence("values", policy_id, sequences)

    def _per_sequence(
        self, name: str, policy_id: str | None, sequences: Sequence[TrainSequence]
    ) -> list[FloatArray]:
        check_sequences(self._limits, sequences)
        parts = shards(sequences, self._count)
        working, found = self._on_parts(name, policy_id, sequences, parts)
        return _in_order([parts[number] for number in working], found, len(sequences))

    def weights(self, policy_id: str) -> PolicyWeights:
        """Return a copy of the policy's weights, on the CPU."""
        weights: PolicyWeights = self._gathered("weights", "gathered_weights", policy_id)
        return weights

    def save(
        self,
        policy_id: str,
        directory: str | Path,
        *,
        step: int,
        policy_version: int,
        extra: Mapping[str, JsonValue] | None = None,
    ) -> CheckpointManifest:
        """Write a checkpoint, identical to a single `Learner`'s; either can load it."""
        manifest: CheckpointManifest = self._gathered(
            "save",
            "gather_and_save",
            policy_id,
            str(directory),
            step=step,
            policy_version=policy_version,
            extra=dict(extra or {}),
        )
        return manifest

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
        """Create a policy from a checkpoint on every rank; see `Learner.load`."""
        manifest: CheckpointManifest = self._add(
            "load",
            policy_id,
            str(directory),
            adapter,
            fresh_optimiser=fresh_optimiser,
            value_head=value_head,
            optimizer=optimizer,
        )
        return manifest

    def drop(self, policy_id: str) -> None:
        """Remove a policy and free its memory."""
        self._group.ask_all("drop", policy_id)
        self._divided.pop(policy_id, None)
        self._losses.pop(policy_id, None)

    def replace(self, policy_id: str, other_id: str) -> None:
        """Drop a policy and give its name to another; see `Learner.replace`."""
        self._group.ask_all("replace", policy_id, other_id)
        self._divided[policy_id] = self._divided.pop(other_id)
        self._losses.pop(policy_id, None)
        if other_id in self._losses:
            self._losses[policy_id] = self._losses.pop(other_id)

    def rest(self) -> None:
        """Let each rank free memory; see `Learner.rest`."""
        self._group.ask_all("rest")

    def close(self) -> None:
        """Stop the ranks, after their current call unless that takes long."""
        self._group.close()
        self._meeting.cleanup()

    def _add(self, name: str, policy_id: str, *args: Any, **kwargs: Any) -> Any:
        """Create a policy on every rank or on none, and record whether it is divided."""
        with self._group.calling():
            there = policy_id in self._divided
            try:
                found = self._group.ask_all(name, policy_id, *args, **kwargs)[0]
                self._divided[policy_id] = self._group.ask_first("divides", policy_id)
                if self._divided[policy_id]:
                    _log.info("policy %s is divided over %d ranks", policy_id, self._count)
            except TinkerGymError:
                if not there:
                    with contextlib.suppress(TinkerGymError):
                        self._group.ask_all("forget", policy_id)
                raise
        return found

    def _gathered(self, whole: str, divided: str, policy_id: str, *args: Any, **kwargs: Any) -> Any:
        """Call the first rank, or all of them if the policy is divided."""
        if not self._divided.get(policy_id):
            return self._group.ask_first(whole, policy_id, *args, **kwargs)
        return self._group.ask_all(divided, policy_id, *args, **kwargs)[0]

    def _on_parts(
        self,
        name: str,
        policy_id: str | None,
        sequences: Sequence[TrainSequence],
        parts: Sequence[Sequence[int]],
        *args: Any,
        **kwargs: Any,
    ) -> tuple[list[int], list[Any]]:
        """Let each rank compute its part, if it has one; return which ones do, and their results."""
        working = [number for number, part in enumerate(parts) if part]
        calls: dict[int, Call] = {
            number: (name, (policy_id, [sequences[i] for i in parts[number]], *args), kwargs)
            for number in working
        }
        if policy_id is not None and self._divided.get(policy_id):
            idle = [number for number, part in enumerate(parts) if not part]
            calls |= dict.fromkeys(idle, ("accompany", (name, policy_id), {}))
        return working, self._group.ask(calls)[: len(working)]


def _in_order(parts: list[list[int]], found: list[list[FloatArray]], count: int) -> list[FloatArray]:
    ordered = [np.zeros(0, dtype=np.float32)] * count
    for part, arrays in zip(parts, found, strict=True):
        for index, array in zip(part, arrays, strict=True):
            ordered[index] = array
    return ordered


def _merged(parts: list[list[int]], found: list[ForwardBackwardResult], counts: Any) -> ForwardBackwardResult:
    """Combine the ranks' results: losses add up, and metrics are those of the whole batch."""
    metrics = metrics_over_parts(
        [
            BatchPart(
                tokens=int(counts[part].sum()), judged_tokens=result.judged_tokens, metrics=result.metrics
            )
            for part, result in zip(parts, found, strict=True)
        ]
    )
    # A spike in one rank's part says nothing about the batch's loss.
    metrics.pop(_LOSS_SPIKE, None)
    return ForwardBackwardResult(
        loss=sum(result.loss for result in found),
        learner_logprobs=_in_order(parts, [result.learner_logprobs for result in found], len(counts)),
        metrics=metrics,
        judged_tokens=sum(result.judged_tokens for result in found),
    )
