"""Decoding steps that are recorded once and replayed: CUDA graphs.

A step of a few dozen tokens is hundreds of operations, each done by a GPU before Python has asked for the
next. Replayed, they are one. A recording has fixed shapes and reads and writes fixed places in memory, so
steps are filled up to few shapes, and every place is part of what a recording is known by.

What records knows CUDA; the rest knows tensors only.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from backend.compiled import tensors_in

_log = logging.getLogger(__name__)
_MOST = 16
"""Recordings that are kept; each holds its logits."""
_MOST_SEEN = 256
"""Kinds of steps that are remembered as seen once; to record one that does not come again is of no use."""
_DIFFERENCE = {torch.float32: 1e-5, torch.float64: 1e-9}
_LOOSE_DIFFERENCE = 2e-2
"""Nats by which a replayed step's logprobs may differ from the computed ones, on average."""
_ROWS = (1, 2, 4)
_ROW_STEP = 8

Compute = Callable[[Tensor], Tensor]
"""From a step's numbers to its logits; what else it reads and writes is at its place."""


class Recorder(Protocol):
    """What turns a step into something that can be replayed."""

    def record(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Return what does the step again, with what is at its places then, and returns the same tensor.

        Args:
            step: Whatever it allocates belongs to the recording.
        """
        ...


class CudaGraphs:
    """Records steps as CUDA graphs; all of them use one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def record(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Record a step; see `Recorder`."""
        with torch.cuda.device(self._device):
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            # What libraries set up at their first call cannot be recorded.
            side, here = torch.cuda.Stream(), torch.cuda.current_stream()  # type: ignore[no-untyped-call]
            side.wait_stream(here)
            with torch.cuda.stream(side):
                step()
            here.wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # Other threads may allocate meanwhile: a learner beside this engine does.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                found = step()

        def replay() -> Tensor:
            graph.replay()
            return found

        return replay


@dataclass(frozen=True, slots=True)
class _Recording:
    numbers: Tensor
    replay: Callable[[], Tensor]


class RecordedSteps:
    """Recordings of steps, by what they are."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._recordings: OrderedDict[Hashable, _Recording] = OrderedDict()
        self._seen: OrderedDict[Hashable, None] = OrderedDict()
        self.works = True
        """False once a recording failed or gave other logits: from then on steps are computed."""
        self.replayed = 0
        """How many steps were not computed."""

    def run(self, kind: Hashable, numbers: Tensor, compute: Compute) -> Tensor:
        """Do a step, from a recording if it is known.

        Args:
            kind: Names all shapes, and all places that `compute` uses (see `places_of`).
            numbers: [count] int64, what differs between steps of one kind.
            compute: See there; doing it twice must be like doing it once.

        Returns:
            What `compute` returns; theirs until the next call.
        """
        known = self._recordings.get(kind)
        if known is not None:
            self._recordings.move_to_end(kind)
            known.numbers.copy_(numbers)
            self.replayed += 1
            return known.replay()
        found = compute(numbers)
        if self.works and self._seen_before(kind):
            self._record(kind, numbers, compute, found)
        return found

    def forget(self) -> None:
        """Give back the memory of all recordings."""
        self._recordings.clear()
        self._seen.clear()

    def _seen_before(self, kind: Hashable) -> bool:
        if kind in self._seen:
            return True
        self._seen[kind] = None
        if len(self._seen) > _MOST_SEEN:
            self._seen.popitem(last=False)
        return False

    def _record(self, kind: Hashable, numbers: Tensor, compute: Compute, expected: Tensor) -> None:
        fixed = numbers.clone()
        try:
            replay = self._recorder.record(lambda: compute(fixed))
            difference = _difference(replay(), expected)
        except Exception:
            _log.exception("decoding steps cannot be recorded; they are computed")
            self._stop()
            return
        if difference is None:
            return  # a policy that has diverged says nothing about recordings
        if not difference <= _DIFFERENCE.get(expected.dtype, _LOOSE_DIFFERENCE):
            _log.error(
                "a recorded decoding step is off by %.3g nats; from now on they are computed", difference
            )
            self._stop()
            return
        self._recordings[kind] = _Recording(fixed, replay)
        if len(self._recordings) > _MOST:
            self._recordings.popitem(last=False)

    def _stop(self) -> None:
        self.works = False
        self.forget()


def rows_for(rows: int) -> int:
    """Return to how many rows a step of so many is filled up, so that there are few shapes."""
    return next((count for count in _ROWS if rows <= count), -(-rows // _ROW_STEP) * _ROW_STEP)


def places_of(things: Sequence[Any]) -> tuple[Hashable, ...]:
    """Return where the tensors in nested tuples and lists are, and how they lie there."""
    return tuple((tensor.data_ptr(), tensor.stride()) for tensor in tensors_in(things))


def _difference(found: Tensor, expected: Tensor) -> float | None:
    """Return by how many nats the logprobs of [rows, vocabulary] differ on average; None if not finite."""
    if not torch.isfinite(expected).all():
        return None
    found, expected = (torch.log_softmax(logits.double(), dim=-1) for logits in (found, expected))
    return float((found - expected).abs().mean())
