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

from backend.compute.compiled import tensors_in

_log = logging.getLogger(__name__)
_MOST = 64
"""Recordings that are kept. Then all go: cuBLAS gives up what every graph of a stream uses with the first."""
_MOST_SEEN = 256
"""Kinds of steps that are remembered as seen once; to record one that does not come again is of no use."""
_NATS = {torch.float32: 1e-4, torch.float64: 1e-9}
_NATS_ELSE = 2e-2
"""By which a row's replayed logprobs may differ from the computed ones, on average over the vocabulary."""
_SHARE = {torch.float32: 1e-3, torch.float64: 1e-9}
_SHARE_ELSE = 5e-2
"""Of its length by which a replayed key or value may differ from the computed one."""
_AT_ONCE = 32
"""Rows that are compared at a time: logits of many tokens are large."""
_ROWS = (1, 2, 4, 8, 16, 24, 32)
_ROW_STEP = 16


class Step(Protocol):
    """One step; to do it twice is like doing it once."""

    @property
    def kind(self) -> Hashable:
        """Names all shapes, and all places that `compute` uses (see `places_of`)."""
        ...

    @property
    def numbers(self) -> Tensor:
        """[count] int64, what differs between steps of one kind."""
        ...

    def compute(self, numbers: Tensor) -> Tensor:
        """Do it with these numbers, and return [rows, vocabulary] logits."""
        ...

    def written(self) -> Tensor:
        """Return a copy of the keys and values that it writes, [many, dim]."""
        ...

    def blank(self) -> None:
        """Fill them with zeros."""
        ...


class Recorder(Protocol):
    """What turns a step into something that can be replayed."""

    def record(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Return what does the step again, with what is at its places then, and returns the same tensor."""
        ...

    def forget(self) -> None:
        """Give back what all recordings shared; none of them is replayed any more."""
        ...


class CudaGraphs:
    """Records steps as CUDA graphs, which share one pool of memory and were recorded on one stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None
        self._stream: Any = None

    def record(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Record a step that was just computed by this thread; see `Recorder`.

        What libraries set up at their first call is there by then, so that nothing has to be run on the
        stream: what they would keep for it would not belong to the recordings.
        """
        with torch.cuda.device(self._device):
            if self._stream is None:
                self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            # Not `torch.cuda.graph`: that empties the allocator's cache, the learner's too, and does not
            # leave the stream if the recording fails.
            with torch.cuda.stream(self._stream):
                # Other threads may allocate meanwhile: a learner beside this engine does.
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    found = step()
                finally:
                    graph.capture_end()

        def replay() -> Tensor:
            graph.replay()
            return found

        return replay

    def forget(self) -> None:
        """Let the next recording begin a pool of its own."""
        self._pool = None


@dataclass(slots=True)
class _Recording:
    numbers: Tensor
    replay: Callable[[], Tensor]
    is_trusted: bool = False
    """Whether it was replayed and compared."""


class RecordedSteps:
    """Recordings of steps, by what they are.

    A kind of step is computed when it comes first and recorded when it comes again. At its third time, with
    other numbers, it is replayed and computed; if both agree in every row, keys and values included, it is
    replayed from then on.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._recordings: dict[Hashable, _Recording] = {}
        self._seen: OrderedDict[Hashable, None] = OrderedDict()
        self._logits: Tensor | None = None
        """Where all recordings leave theirs."""
        self.works = True
        """False once a recording failed or was off: from then on steps are computed."""
        self.replayed = 0
        """How many steps were not computed."""

    def run(self, step: Step) -> Tensor:
        """Do a step and return its logits, theirs until the next call."""
        recording = self._recordings.get(step.kind)
        if recording is None:
            found = step.compute(step.numbers)
            if self.works and self._seen_before(step.kind) and _all_finite(found):
                self._record(step, found)
            return found
        recording.numbers.copy_(step.numbers)
        if not recording.is_trusted:
            return self._try(recording, step)
        self.replayed += 1
        return recording.replay()

    def forget(self) -> None:
        """Give back the memory of all recordings."""
        self._recordings.clear()
        self._seen.clear()
        self._logits = None
        self._recorder.forget()

    def _seen_before(self, kind: Hashable) -> bool:
        if kind in self._seen:
            return True
        self._seen[kind] = None
        if len(self._seen) > _MOST_SEEN:
            self._seen.popitem(last=False)
        return False

    def _record(self, step: Step, like: Tensor) -> None:
        if len(self._recordings) >= _MOST:
            self.forget()
        numbers, logits = step.numbers.clone(), self._room(like)
        try:
            replay = self._recorder.record(lambda: logits.copy_(step.compute(numbers)))
        except Exception:
            _log.exception("decoding steps cannot be recorded; from now on all are computed")
            self._stop()
            return
        self._recordings[step.kind] = _Recording(numbers, replay)

    def _try(self, recording: _Recording, step: Step) -> Tensor:
        step.blank()
        replayed, left = recording.replay().clone(), step.written()
        found = step.compute(step.numbers)
        if not _all_finite(found):
            return found  # a policy that has diverged says nothing of recordings
        off = _difference(replayed, found)
        share = _largest_share(left, step.written())
        if off <= _NATS.get(found.dtype, _NATS_ELSE) and share <= _SHARE.get(found.dtype, _SHARE_ELSE):
            recording.is_trusted = True
        else:
            _log.error(
                "a recorded decoding step is off by %.3g nats, and by %.3g of what it keeps; from now on all "
                "are computed",
                off,
                share,
            )
            self._stop()
        return found

    def _room(self, like: Tensor) -> Tensor:
        rows = like.shape[0]
        if self._logits is None or len(self._logits) < rows:
            # Recordings of fewer rows keep what was there before.
            self._logits = torch.empty_like(like)
        return self._logits[:rows]

    def _stop(self) -> None:
        self.works = False
        self.forget()


def rows_for(rows: int) -> int:
    """Return to how many rows a step of so many is filled up, so that there are few shapes."""
    return next((count for count in _ROWS if rows <= count), -(-rows // _ROW_STEP) * _ROW_STEP)


def places_of(things: Sequence[Any]) -> tuple[Hashable, ...]:
    """Return where the tensors in nested tuples and lists are, and how they lie there."""
    return tuple((tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in tensors_in(things))


def _all_finite(logits: Tensor) -> bool:
    return bool(torch.isfinite(logits.sum(dtype=torch.float32)))


def _difference(found: Tensor, expected: Tensor) -> float:
    """Return by how many nats logprobs of [rows, vocabulary] differ, in the row where they differ most."""
    most = 0.0
    for begin in range(0, len(found), _AT_ONCE):
        ours, theirs = (
            torch.log_softmax(logits[begin : begin + _AT_ONCE].float(), dim=-1)
            for logits in (found, expected)
        )
        most = max(most, float((ours - theirs).abs_().mean(dim=-1).nan_to_num(nan=torch.inf).max()))
    return most


def _largest_share(found: Tensor, expected: Tensor) -> float:
    """Return by which part of its length a vector of [many, dim] differs most."""
    lengths = expected.float().norm(dim=-1).clamp_min_(1e-6)
    shares = (found.float() - expected.float()).norm(dim=-1) / lengths
    return float(shares.nan_to_num(nan=torch.inf).max())
