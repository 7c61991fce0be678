"""One rank of a data-parallel group: a `Learner` whose optimiser step first sums the gradients of all.

Adapters and small models are whole on each rank; of larger full-parameter policies each holds a part.

Made by `serve_rank` in a process of its own, whatever started that (`RankProcess`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from backend.compute.weights import PolicyWeights
from backend.learner.batching import MicroBatch
from backend.learner.checkpoints import CheckpointManifest
from backend.learner.divided import is_divided, whole
from backend.learner.divided_policy import DividedPolicy
from backend.learner.learner import Learner
from backend.learner.optimiser import OptimStepResult
from backend.learner.policies import FullPolicy
from backend.vision.pixels import ImageSource
from tinkergym.errors import InternalServiceError, InvalidRequestError, TinkerGymError
from tinkergym.schema.job_spec import FullParameters

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Of `mallopt`, in glibc's malloc.h."""
_LARGE_BYTES = 4 * 2**20
"""Smaller ones would save more, and cost more: new blocks are filled with zeros."""
_SPARE_BYTES = 256 * 2**20
"""That small blocks may keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOptions:
    """What all ranks of a group have in common."""

    ranks: int
    folder: str
    """Where the ranks of one machine find each other; short enough for a Unix socket in it."""
    model_dir: str
    device: str
    dtype: torch.dtype
    micro_batch_tokens: int | None
    threads: int
    silence_seconds: float
    divide_from: int
    """Parameters of a full-parameter policy that is divided over the ranks."""
    images: ImageSource | None = None
    """Where image files come from; each rank reads and sees those of its part of a batch."""


class Rank(Learner):
    """A learner that takes part in a group. Every rank is called alike, but for the sequences it is given."""

    def __init__(self, number: int, options: RankOptions) -> None:
        """Join the group, which waits until all its ranks are there, and load the model."""
        torch.set_num_threads(options.threads)
        _give_large_blocks_back()
        on_gpu = options.device.startswith("cuda")
        if on_gpu:
            torch.cuda.set_device(number)
        else:
            # Gloo asks nobody who he is: between processes of one machine it stays on the loopback.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            init_method=f"file://{options.folder}/meeting",
            rank=number,
            world_size=options.ranks,
            timeout=timedelta(seconds=options.silence_seconds),
        )
        self._number = number
        self._divide_from = options.divide_from
        self._mesh = init_device_mesh("cuda" if on_gpu else "cpu", (options.ranks,))
        super().__init__(
            options.model_dir,
            device=f"cuda:{number}" if options.device == "cuda" else options.device,
            dtype=options.dtype,
            micro_batch_tokens=options.micro_batch_tokens,
            cpu_threads=options.threads,
            learners=1 if on_gpu else options.ranks,
            images=options.images,
        )

    def optim_step(
        self,
        policy_id: str,
        *,
        learning_rate: float,
        max_grad_norm: float = 1.0,
        weight_decay: float = 0.0,
        value_learning_rate: float | None = None,
        skip_zero_gradient: bool = True,
    ) -> OptimStepResult:
        """Sum the gradient over the ranks, then take the step that every rank takes."""
        waiting = torch.tensor([float(self.has_gradient(policy_id))], device=self.device)
        dist.all_reduce(waiting)
        if waiting.item() > 0:
            # Those of divided weights were added up in the backward pass.
            gradients = [own for own in self.gradient(policy_id).values() if not is_divided(own)]
            for own, summed in zip(gradients, _summed(gradients), strict=True):
                own.copy_(summed)
        return super().optim_step(
            policy_id,
            learning_rate=learning_rate,
            max_grad_norm=max_grad_norm,
            weight_decay=weight_decay,
            value_learning_rate=value_learning_rate,
            skip_zero_gradient=skip_zero_gradient,
        )

    def summed_gradient(self, policy_id: str) -> dict[str, torch.Tensor]:
        """Return the gradient of all ranks together; that of this rank stays as it is."""
        own = self.gradient(policy_id)
        copied = [name for name, tensor in own.items() if not is_divided(tensor)]
        summed = dict(zip(copied, _summed([own[name] for name in copied]), strict=True))
        return {name: summed[name].cpu() if name in summed else whole(own[name]).cpu() for name in own}

    # --- policies that are divided: every rank is called, whether it has something to do or not ---

    def divides(self, policy_id: str) -> bool:
        """Whether each rank holds a part of the policy."""
        return isinstance(self._entry(policy_id).policy, DividedPolicy)

    def forget(self, policy_id: str) -> None:
        """Drop a policy if there is one: making it has failed on another rank."""
        if policy_id in self.policy_ids:
            self.drop(policy_id)

    def accompany(self, name: str, policy_id: str) -> None:
        """Take part in a call of this name for which this rank has no sequences."""
        entry = self._entry(policy_id)
        if name == "values":
            self._value_head(policy_id)  # which the others refuse to do without
        # What is learned from, and what is only looked at.
        gradients = (True, False) if name == "forward_backward" else (False,)
        for gradient in gradients:
            self._run(entry.policy, (), _Nothing(), only=None, gradient=gradient)
        entry.pending |= any(gradients)

    def gathered_weights(self, policy_id: str) -> PolicyWeights | None:
        """Put the policy's weights together on the first rank, which returns them."""
        weights = self.weights(policy_id)
        return weights if self._number == 0 else None

    def gather_and_save(self, policy_id: str, directory: str, **progress: Any) -> CheckpointManifest | None:
        """Put together on the first rank what a checkpoint holds; that one writes it."""
        if self._number == 0:
            return self.save(policy_id, directory, **progress)
        entry = self._savable(policy_id)
        self.weights(policy_id)
        entry.optimiser.state()
        return None

    def _full_policy(self, model_dir: str, adapter: FullParameters) -> FullPolicy:
        if self.parameter_count < self._divide_from:
            return super()._full_policy(model_dir, adapter)
        if self._base.image_rules is not None:
            # Its vision tower and its embeddings compute outside of what is put together for a forward pass.
            raise InvalidRequestError(
                f"a model with {self.parameter_count} parameters that takes images is not divided over ranks",
                hint="train tg.LoRA(), or let the operator raise learner_divide_from above that number",
                field="adapter",
            )
        lm = self._own_model(model_dir, torch.float32)
        return DividedPolicy(lm, adapter, self._mesh, compute_dtype=self._dtype)


def _give_large_blocks_back() -> None:
    """Have the C library return the memory of every large tensor at once, from now on.

    glibc keeps ever larger blocks for itself, and among those that the layers of a divided policy leave
    behind nothing new fits: in all it then took as much as a whole one.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _SPARE_BYTES)


class _Nothing:
    """A pass over no sequences."""

    def run(self, batch: MicroBatch, *, gradient: bool) -> None:
        """Never called: there is no micro-batch."""

    def add(self, found: None) -> None:
        """Never called."""


def _summed(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    if not tensors:
        return []
    # One message instead of hundreds.
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]


def serve_rank(number: int, options: RankOptions, pipe: Connection) -> None:
    """Answer (number of the call, method, args, kwargs) until the pipe ends.

    With (number of the call, True, value) or (number, False, error); at first, ready, with call 0. Plain
    pickle and not that of multiprocessing, for which torch moves tensors into shared memory: a model may not
    fit there, and every tensor would take a file descriptor.
    """
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            rank = Rank(number, options)
        except TinkerGymError as error:
            pipe.send_bytes(pickle.dumps((0, False, error)))
            return
        pipe.send_bytes(pickle.dumps((0, True, None)))
        while True:
            call, name, args, kwargs = pickle.loads(pipe.recv_bytes())
            pipe.send_bytes(_answer(call, rank, name, args, kwargs))


def _answer(call: int, rank: Rank, name: str, args: Any, kwargs: Any) -> bytes:
    try:
        found = getattr(rank, name)
        return pickle.dumps((call, True, found(*args, **kwargs) if callable(found) else found))
    except TinkerGymError as error:
        return pickle.dumps((call, False, error))
    except OSError as error:
        # A disk that cannot be written or read is the affair of who wanted it, and of no other policy.
        failed = InternalServiceError(
            f"{name} failed: {type(error).__name__}: {error}",
            hint="look whether data_dir can be read and written, and has room",
        )
        return pickle.dumps((call, False, failed))
    except Exception as error:
        # One that surely can be pickled.
        return pickle.dumps((call, False, RuntimeError(f"{type(error).__name__}: {error}")))
