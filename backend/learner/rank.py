"""A rank of a data-parallel group: a `Learner` whose optimiser step first sums all ranks' gradients.

Adapters and small models are complete on each rank; larger full-parameter policies are divided.

Created by `serve_rank` in a separate process, however that was started (`RankProcess`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, Unpack

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from backend.compute.weights import PolicyWeights
from backend.learner.batching import MicroBatch
from backend.learner.checkpoints import CheckpointManifest
from backend.learner.divided import is_divided, whole
from backend.learner.divided_policy import DividedPolicy
from backend.learner.learner import Learner
from backend.learner.loaded_model import LoadedModel
from backend.learner.optimiser import OptimStepResult
from backend.learner.policies import FullPolicy
from backend.vision.pixels import ImageSource
from tinkergym.errors import InternalServiceError, InvalidRequestError, TinkerGymError
from tinkergym.schema.jobs.parts import FullParameters
from tinkergym.schema.optimizer import OptimizerStep

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Constant for `mallopt`, from glibc's malloc.h."""
_LARGE_BYTES = 4 * 2**20
"""Smaller values would save more memory, but cost time: new blocks are filled with zeros."""
_SPARE_BYTES = 256 * 2**20
"""Limit for small blocks that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOptions:
    """Settings shared by all ranks of a group."""

    ranks: int
    folder: str
    """Folder for the rendezvous of ranks on one machine; short enough for a Unix socket path."""
    model_dir: str
    device: str
    dtype: torch.dtype
    micro_batch_tokens: int | None
    threads: int
    silence_seconds: float
    divide_from: int
    """Parameters of a full-parameter policy that is divided over the ranks."""
    images: ImageSource | None = None
    """Source of image files; each rank reads and processes those of its part of a batch."""


class Rank(Learner):
    """A learner in a group. All ranks receive the same calls, but different sequences."""

    def __init__(self, number: int, options: RankOptions) -> None:
        """Join the group, which waits for all its ranks, and load the model."""
        torch.set_num_threads(options.threads)
        _give_large_blocks_back()
        on_gpu = options.device.startswith("cuda")
        if on_gpu:
            torch.cuda.set_device(number)
        else:
            # Gloo has no authentication: between processes of one machine it stays on the loopback interface.
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
            make_full=self._make_full,
        )

    def optim_step(self, policy_id: str, **settings: Unpack[OptimizerStep]) -> OptimStepResult:
        """Sum the gradient over the ranks, then take the same step on every rank."""
        waiting = torch.tensor([float(self.has_gradient(policy_id))], device=self.device)
        dist.all_reduce(waiting)
        if waiting.item() > 0:
            # Gradients of divided weights were summed in the backward pass.
            gradients = [own for own in self.gradient(policy_id).values() if not is_divided(own)]
            for own, summed in zip(gradients, _summed(gradients), strict=True):
                own.copy_(summed)
        return super().optim_step(
            policy_id,
            **settings,
        )

    def summed_gradient(self, policy_id: str) -> dict[str, torch.Tensor]:
        """Return the summed gradient of all ranks; this rank's part is unchanged."""
        own = self.gradient(policy_id)
        copied = [name for name, tensor in own.items() if not is_divided(tensor)]
        summed = dict(zip(copied, _summed([own[name] for name in copied]), strict=True))
        return {name: summed[name].cpu() if name in summed else whole(own[name]).cpu() for name in own}

    # --- divided policies: every rank is called, even without work ---

    def divides(self, policy_id: str) -> bool:
        """Return whether each rank has a part of the policy."""
        return isinstance(self._policies[policy_id].policy, DividedPolicy)

    def forget(self, policy_id: str) -> None:
        """Drop a policy if it exists, because creating it failed on another rank."""
        if policy_id in self.policy_ids:
            self.drop(policy_id)

    def accompany(self, name: str, policy_id: str) -> None:
        """Take part in a call of this name for which this rank has no sequences."""
        state = self._policies[policy_id]
        if name == "values":
            self._policies.value_head(policy_id)  # which the others require
        # The sequences to train on and those to only look at.
        gradients = (True, False) if name == "forward_backward" else (False,)
        for gradient in gradients:
            self._runner.run(state.policy, (), _Nothing(), gradient=gradient)
        state.pending |= any(gradients)

    def gathered_weights(self, policy_id: str) -> PolicyWeights | None:
        """Gather the policy's weights on the first rank, which returns them."""
        weights = self.weights(policy_id)
        return weights if self._number == 0 else None

    def gather_and_save(self, policy_id: str, directory: str, **progress: Any) -> CheckpointManifest | None:
        """Gather a checkpoint's contents on the first rank, which writes it."""
        if self._number == 0:
            return self.save(policy_id, directory, **progress)
        state = self._policies.without_gradient(policy_id)
        self.weights(policy_id)
        state.optimiser.state()
        return None

    def _make_full(self, base: LoadedModel, model_dir: str, adapter: FullParameters) -> FullPolicy | None:
        if base.parameters < self._divide_from:
            return None
        if base.lm.image_rules is not None:
            # Its vision tower and its embeddings compute outside of what is gathered for a forward pass.
            raise InvalidRequestError(
                f"a model with image support and {base.parameters} parameters cannot be divided over ranks",
                hint="train tg.LoRA(), or let the operator raise learner_divide_from above that number",
                field="adapter",
            )
        lm = base.separate(model_dir, torch.float32)
        return DividedPolicy(lm, adapter, self._mesh, compute_dtype=base.dtype)


def _give_large_blocks_back() -> None:
    """From now on make the C library return the memory of large tensors at once.

    glibc otherwise keeps ever larger blocks, and nothing new fits between those left by the layers of a
    divided policy: the total then was that of a complete one.
    """
    with contextlib.suppress(OSError, AttributeError):  # a different C library
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _SPARE_BYTES)


class _Nothing:
    """A pass over no sequences."""

    def run(self, batch: MicroBatch, *, gradient: bool) -> None:
        """Never called, because there is no micro-batch."""

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
    """Process (call number, method, args, kwargs) messages until the pipe ends.

    Replies are (call number, True, value) or (call number, False, error); the first, for readiness, has
    number 0. Plain pickle is used instead of multiprocessing's, with which torch moves tensors into shared
    memory: a model may not fit there, and every tensor would need a file descriptor.
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
        # A disk that cannot be read or written only concerns the caller, not other policies.
        failed = InternalServiceError(
            f"{name} failed: {type(error).__name__}: {error}",
            hint="check that data_dir is readable and writable and has free space",
        )
        return pickle.dumps((call, False, failed))
    except Exception as error:
        # One that can certainly be pickled.
        return pickle.dumps((call, False, RuntimeError(f"{type(error).__name__}: {error}")))
