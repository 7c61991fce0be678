"""A rank of a data-parallel group: a `Learner` that computes its part of every batch.

Invariant: all ranks receive the same calls, with whole batches, in the same order. Each computes its part of
a batch, normalised over the whole, and an optimizer step first sums the gradients of all: all copies stay
bitwise equal. A call ends alike on all ranks: with the result of the whole batch, or with the first rank's
error. Adapters and small models are complete on each rank; larger full-parameter policies are divided.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, Unpack

import numpy as np
import psutil
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from backend.learner.batching import MicroBatch
from backend.learner.checkpoints import CheckpointManifest
from backend.learner.forward_backward import PolicyBatch
from backend.learner.learner import Learner
from backend.learner.loaded_model import LoadedModel
from backend.learner.parallel.combined import in_order, merged, same_step
from backend.learner.parallel.divided import is_divided, whole
from backend.learner.parallel.divided_policy import DividedPolicy
from backend.learner.pass_results import ForwardBackwardResult, OptimStepResult
from backend.learner.policy_weights import FullPolicy
from backend.learner.sequences import BatchTotals, FloatArray, SampledTokens, TrainSequence, check_sequences
from backend.vision.pixels import ImageSource
from backend.worker_url import LOOPBACK
from tinkergym.errors import InternalServiceError, InvalidRequestError, TinkerGymError
from tinkergym.schema.jobs.parts import FullParameters
from tinkergym.schema.optimizer import OptimizerStep

_IDLE = timedelta(days=365)
"""How long ranks wait for the next call. The caller limits how long a call takes."""
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOptions:
    """Settings shared by all ranks of a group."""

    ranks: int
    meeting: str
    """URL at which torch's ranks meet: `file:///path` on one machine, or `tcp://HOST:PORT` of the first."""
    model_dir: str
    device: str
    """`cpu` (communication by gloo), `cuda` (NCCL; rank i uses device i) or `cuda:0` (all it sees)."""
    dtype: torch.dtype
    micro_batch_tokens: int | None
    threads: int
    silence_seconds: float
    divide_from: int
    """Parameters of a full-parameter policy that is divided over the ranks."""
    room: int | None = None
    """See `LoadedModel.load`."""
    images: ImageSource | None = None
    """Source of image files; each rank reads and processes those of its part of a batch."""
    host: str = LOOPBACK
    """This machine's address, at which the other ranks reach this one."""


class Rank(Learner):
    """One of several learners that train as one."""

    def __init__(self, number: int, options: RankOptions) -> None:
        """Join the group, which waits for all its ranks, and load the model."""
        on_gpu = options.device.startswith("cuda")
        device = f"cuda:{number}" if options.device == "cuda" else options.device
        torch.set_num_threads(options.threads)
        if on_gpu:
            torch.cuda.set_device(device)
        # Gloo has no authentication: between processes of one machine it stays on the loopback interface.
        interface = interface_of(options.host)
        for library in ("GLOO", "NCCL") if interface != "lo" else ("GLOO",):
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", interface)
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            init_method=options.meeting,
            rank=number,
            world_size=options.ranks,
            timeout=timedelta(seconds=options.silence_seconds),
        )
        self.calls = dist.new_group(backend="gloo", timeout=_IDLE)
        """For calls and their outcomes: Python objects, also where tensors travel by NCCL."""
        self._number, self._ranks = number, options.ranks
        self._divide_from = options.divide_from
        self._mesh = init_device_mesh("cuda" if on_gpu else "cpu", (options.ranks,))
        super().__init__(
            options.model_dir,
            device=device,
            dtype=options.dtype,
            micro_batch_tokens=options.micro_batch_tokens,
            cpu_threads=options.threads,
            learners=1 if on_gpu else options.ranks,
            room=options.room,
            images=options.images,
            make_full=self._make_full,
        )

    def forward_backward_many(self, parts: Mapping[str, PolicyBatch]) -> dict[str, ForwardBackwardResult]:
        """See `Learner`; every rank returns the results of the whole batches."""
        for policy_id, part in parts.items():
            # All ranks refuse alike, before any of them waits for another in a sum.
            _ = self._policies[policy_id]
            SampledTokens.of(part.sequences)  # also refuses what no rank could index correctly
            check_sequences(self.limits, part.sequences)
        try:
            results = {policy_id: self._on_shards(policy_id, part) for policy_id, part in parts.items()}
        except TinkerGymError:
            # Some ranks have their part of a gradient whose other parts do not exist.
            for policy_id in parts:
                self.forget_gradient(policy_id)
            raise
        return {policy_id: self._policies[policy_id].watched(result) for policy_id, result in results.items()}

    def _on_shards(self, policy_id: str, part: PolicyBatch) -> ForwardBackwardResult:
        counts = SampledTokens.of(part.sequences).counts
        numbers = shards(part.sequences, self._ranks)
        own = replace(
            part,
            sequences=[part.sequences[i] for i in numbers[self._number]],
            totals=part.totals or BatchTotals.of(part.sequences),
        )

        def compute() -> ForwardBackwardResult | None:
            if own.sequences:
                return self._gradients({policy_id: own})[policy_id]
            # The sequences to train on and those to only look at.
            self._accompany(policy_id, gradients=(True, False))
            return None

        found = self._agreed(compute)
        working = [each for each in numbers if each]
        return merged(working, [each for each in found if each is not None], counts)

    def has_gradient(self, policy_id: str) -> bool:
        """Return whether any rank has an accumulated gradient."""
        waiting = torch.tensor([float(super().has_gradient(policy_id))], device=self.device)
        dist.all_reduce(waiting)
        return waiting.item() > 0

    def gradient(self, policy_id: str) -> dict[str, torch.Tensor]:
        """Return a copy of the gradient summed over the ranks, on the CPU; this rank's part is unchanged."""
        own = super().gradient(policy_id)
        copied = [name for name, tensor in own.items() if not is_divided(tensor)]
        summed = dict(zip(copied, _summed([own[name] for name in copied]), strict=True))
        return {name: summed[name].cpu() if name in summed else whole(own[name]).cpu() for name in own}

    def optim_step(self, policy_id: str, **settings: Unpack[OptimizerStep]) -> OptimStepResult:
        """Sum the gradient over the ranks, then take the same step on every rank."""
        # Asked of all ranks: one without sequences has no gradient of its own, but takes part in the sum.
        if self.has_gradient(policy_id):
            # Gradients of divided weights were summed in the backward pass.
            gradients = [own for own in super().gradient(policy_id).values() if not is_divided(own)]
            for own, summed in zip(gradients, _summed(gradients), strict=True):
                own.copy_(summed)
        step = super().optim_step
        return same_step(self._outcomes(lambda: step(policy_id, **settings)))

    def logprobs(self, policy_id: str | None, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """See `Learner`; every rank returns those of the whole batch."""
        return self._per_sequence(super().logprobs, policy_id, sequences)

    def values(self, policy_id: str, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """See `Learner`; every rank returns those of the whole batch."""
        self._policies.value_head(policy_id)
        return self._per_sequence(super().values, policy_id, sequences)

    def _per_sequence(
        self,
        compute: Callable[[Any, Sequence[TrainSequence]], list[FloatArray]],
        policy_id: str | None,
        sequences: Sequence[TrainSequence],
    ) -> list[FloatArray]:
        check_sequences(self.limits, sequences)
        numbers = shards(sequences, self._ranks)
        own = [sequences[i] for i in numbers[self._number]]

        def part() -> list[FloatArray]:
            if own:
                return compute(policy_id, own)
            if policy_id is not None:
                self._accompany(policy_id, gradients=(False,))
            return []

        return in_order(numbers, self._agreed(part), len(sequences))

    def weights(self, policy_id: str) -> Any:
        """Return a copy of the policy's weights on the first rank, and nothing that is used on the others."""
        if self._number and not self._divides(policy_id):
            return None
        return super().weights(policy_id)

    def save(self, policy_id: str, directory: str | Path, **progress: Any) -> Any:
        """Write a checkpoint on the first rank, identical to a single `Learner`'s; either can load it."""
        if self._number == 0:
            return super().save(policy_id, directory, **progress)
        state = self._policies.without_gradient(policy_id)
        if self._divides(policy_id):
            # Divided tensors are gathered from all ranks, in the order in which the first one saves them.
            self.weights(policy_id)
            state.optimizer.state()
        return None

    def create_policy(self, policy_id: str, *args: Any, **settings: Any) -> None:
        """Add an untrained policy on every rank or on none."""
        create = super().create_policy
        self._on_all_or_none(policy_id, lambda: create(policy_id, *args, **settings))

    def load(self, policy_id: str, *args: Any, **settings: Any) -> CheckpointManifest:
        """Create a policy from a checkpoint on every rank or on none."""
        load = super().load
        return self._on_all_or_none(policy_id, lambda: load(policy_id, *args, **settings))

    def _on_all_or_none(self, policy_id: str, make: Callable[[], _Result]) -> _Result:
        # A policy that existed before is why the call fails; it stays.
        there = policy_id in self._policies
        try:
            return self._agreed(make)[0]
        except TinkerGymError:
            if not there and policy_id in self._policies:
                self.drop(policy_id)
            raise

    def _agreed(self, work: Callable[[], _Result]) -> list[_Result]:
        """Do this rank's part, and return all ranks' results; raise the first rank's error on all of them."""
        results: list[_Result] = []
        for found in self._outcomes(work):
            if isinstance(found, TinkerGymError):
                raise found
            results.append(found)
        return results

    def _outcomes(self, work: Callable[[], _Result]) -> list[_Result | TinkerGymError]:
        # Any other error ends the group: nothing is known then about what this rank has done.
        own: _Result | TinkerGymError
        try:
            own = work()
        except TinkerGymError as error:
            own = error
        except OSError as error:
            own = failed_on_disk(error)
        found: list[Any] = [None] * self._ranks
        dist.all_gather_object(found, own, group=self.calls)
        return found

    # --- divided policies: every rank takes part, even without work ---

    def _divides(self, policy_id: str) -> bool:
        return isinstance(self._policies[policy_id].policy, DividedPolicy)

    def _accompany(self, policy_id: str, *, gradients: Sequence[bool]) -> None:
        """Take part in passes for which this rank has no sequences, if the others need it."""
        state = self._policies[policy_id]
        if self._divides(policy_id):
            for gradient in gradients:
                self._runner.run(state.policy, (), _Nothing(), gradient=gradient)
            state.pending |= any(gradients)

    def _make_full(self, base: LoadedModel, model_dir: str, adapter: FullParameters) -> FullPolicy | None:
        if base.parameters < self._divide_from:
            return None
        if base.lm.image_rules is not None:
            # Its vision tower and its embeddings compute outside of what is gathered for a forward pass.
            raise InvalidRequestError(
                f"a model with image support and {base.parameters} parameters cannot be divided over ranks",
                hint="train tg.LoRA(), or let the operator set placement.learner.divided=false",
                field="adapter",
            )
        lm = base.separate(model_dir, torch.float32)
        return DividedPolicy(lm, adapter, self._mesh, compute_dtype=base.dtype)


class _Nothing:
    """A pass over no sequences."""

    def run(self, batch: MicroBatch, *, gradient: bool) -> None:
        """Never called, because there is no micro-batch."""

    def add(self, found: None) -> None:
        """Never called."""


def failed_on_disk(error: OSError) -> InternalServiceError:
    """Return the error for a disk that fails, which only concerns the caller, not other policies."""
    return InternalServiceError(
        f"the learner failed: {type(error).__name__}: {error}",
        hint="check that data_dir is readable and writable and has free space",
    )


def _summed(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    if not tensors:
        return []
    # One message instead of hundreds.
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]


def interface_of(address: str) -> str:
    """Return the name of the interface with this address.

    Raises:
        InternalServiceError: No interface of this machine has it.
    """
    for name, found in psutil.net_if_addrs().items():
        if any(one.address == address for one in found):
            return str(name)
    raise InternalServiceError(
        f"no network interface of this machine has the address {address}",
        hint="start its Ray node with --node-ip-address, set to an address of one of its interfaces",
    )


def shards(sequences: Sequence[TrainSequence], ranks: int) -> list[list[int]]:
    """Divide a batch into one part per rank, with about equal numbers of tokens.

    Sequences with a common beginning stay together, because a rank computes the common part once. A rank may
    get nothing. Sequences without a sampled token are left out, unless there are no others.

    Returns:
        [ranks] lists of indices into `sequences`; reproducible for a given batch.
    """
    if ranks < 1:
        raise ValueError(f"{ranks} ranks")
    chosen = [i for i, sequence in enumerate(sequences) if any(sequence.loss_mask)]
    if not chosen:
        return [list(range(len(sequences))), *([] for _ in range(ranks - 1))]
    chosen.sort(key=lambda i: tuple(sequences[i].token_ids))
    lengths = np.asarray([len(sequences[i].token_ids) for i in chosen], dtype=np.float64)
    # All sequences are laid end to end and cut into equal pieces; a sequence belongs to the piece with its
    # middle.
    middles = (np.cumsum(lengths) - lengths / 2) / lengths.sum()
    parts: list[list[int]] = [[] for _ in range(ranks)]
    for i, middle in zip(chosen, middles, strict=True):
        parts[min(int(middle * ranks), ranks - 1)].append(i)
    return parts
