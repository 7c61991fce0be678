"""One rank of a data-parallel group: a `Learner` whose optimiser step first sums the gradients of all.

Made by `serve_rank` in a process of its own, whatever started that (`RankProcess`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from backend.learner.learner import Learner
from backend.learner.optimiser import OptimStepResult
from tinkergym.errors import TinkerGymError


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOptions:
    """What all ranks of a group have in common."""

    ranks: int
    meeting_point: str
    """Where the ranks find each other: `file:///path` on one machine, `tcp://host:port` between several."""
    model_dir: str
    device: str
    dtype: torch.dtype
    micro_batch_tokens: int | None
    threads: int
    silence_seconds: float


class Rank(Learner):
    """A learner that takes part in a group. Every rank is called alike, but for the sequences it is given."""

    def __init__(self, number: int, options: RankOptions) -> None:
        """Join the group, which waits until all its ranks are there, and load the model."""
        torch.set_num_threads(options.threads)
        on_gpu = options.device.startswith("cuda")
        if not on_gpu:
            # Gloo asks nobody who he is: between processes of one machine it stays on the loopback.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            init_method=options.meeting_point,
            rank=number,
            world_size=options.ranks,
            timeout=timedelta(seconds=options.silence_seconds),
        )
        super().__init__(
            options.model_dir,
            device=f"cuda:{number}" if options.device == "cuda" else options.device,
            dtype=options.dtype,
            micro_batch_tokens=options.micro_batch_tokens,
            cpu_threads=options.threads,
            learners=1 if on_gpu else options.ranks,
        )

    def optim_step(
        self,
        policy_id: str,
        *,
        learning_rate: float,
        max_grad_norm: float = 1.0,
        weight_decay: float = 0.0,
        value_learning_rate: float | None = None,
    ) -> OptimStepResult:
        """Sum the gradient over the ranks, then take the step that every rank takes."""
        waiting = torch.tensor([float(self.has_gradient(policy_id))], device=self.device)
        dist.all_reduce(waiting)
        if waiting.item() > 0:
            gradients = list(self.gradient(policy_id).values())
            for own, summed in zip(gradients, _summed(gradients), strict=True):
                own.copy_(summed)
        return super().optim_step(
            policy_id,
            learning_rate=learning_rate,
            max_grad_norm=max_grad_norm,
            weight_decay=weight_decay,
            value_learning_rate=value_learning_rate,
        )

    def summed_gradient(self, policy_id: str) -> dict[str, torch.Tensor]:
        """Return the gradient of all ranks together; that of this rank stays as it is."""
        own = self.gradient(policy_id)
        summed = _summed(list(own.values()))
        return {name: tensor.cpu() for name, tensor in zip(own, summed, strict=True)}


def _summed(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    # One message instead of hundreds.
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]


def serve_rank(number: int, options: RankOptions, pipe: Connection) -> None:
    """Answer `(method, args, kwargs)` with `(True, value)` or `(False, error)` until the pipe ends."""
    try:
        rank = Rank(number, options)
        pipe.send((True, None))
        while True:
            name, args, kwargs = pipe.recv()
            pipe.send(_answer(rank, name, args, kwargs))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    except TinkerGymError as error:
        pipe.send((False, error))


def _answer(rank: Rank, name: str, args: Any, kwargs: Any) -> tuple[bool, Any]:
    try:
        found = getattr(rank, name)
        return True, found(*args, **kwargs) if callable(found) else found
    except TinkerGymError as error:
        return False, error
    except Exception as error:
        return False, RuntimeError(f"{type(error).__name__}: {error}")  # one that surely can be pickled
