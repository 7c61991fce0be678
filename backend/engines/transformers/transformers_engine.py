"""The transformers engine: samples with transformers on this process's device, without a server.

One engine thread computes; public methods only pass data to it or take a lock briefly.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from backend.catalog.models import ModelFacts, read_model_facts
from backend.compute.supported_models import Quantization
from backend.compute.weights import PolicyWeights, weights_sha256
from backend.engines.failures import deliver_to, engine_closing, failure, sender_gone
from backend.engines.transformers.batch_runs import BATCHES_AT_ONCE, Batch, BatchRuns
from backend.engines.transformers.engine_turns import EngineTurns
from backend.engines.transformers.open_streams import OpenStreams
from backend.engines.transformers.packed_model import PackedModel
from backend.engines.transformers.request_intake import RequestIntake, Taken
from backend.engines.transformers.request_state import RequestState, deliver_answered
from backend.engines.transformers.separate_batches import SeparateBatches
from backend.engines.transformers.slot_scheduler import SlotScheduler
from backend.engines.transformers.slot_table import Counters, SlotLimits
from backend.errors import SERVICE_LOG
from backend.processes.exhaustion import end_if_exhausted, out_of_memory_code
from backend.vision.pixels import ImageSource
from backend.vision.shared_caches import SharedImages, shared
from tinkergym.agent.sampler import Deliver
from tinkergym.errors import (
    InternalServiceError,
)
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest

_log = logging.getLogger(__name__)

_MOST_ACTIVE_ON_CPU = 128
"""Half of 256 games act in their environments while the others are computed. On 2 cores, which both share, a
step takes as long as with all at once, but the engine rarely waits: 5 instead of 10 % of a step are neither
sampling nor learning."""

_LEAST_CACHE_BYTES = 1 << 30
_PART_OF_A_GPUS_MEMORY = 4


class TransformersEngine:
    """A `SamplingEngine` for decoders from transformers; see `protocol.py` for the contract."""

    def __init__(
        self,
        model_directory: Path,
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        device_lock: AbstractContextManager[object] | None = None,
        max_slots: int = 256,
        cache_bytes: int | None = None,
        iteration_tokens: int = 4096,
        most_active: int | None = None,
        merged_adapters: int = 4,
        images: ImageSource | SharedImages | None = None,
        quantized: Quantization = "",
    ) -> None:
        """Load a model and start the engine's thread.

        Args:
            model_directory: As `resolve_model` returns it.
            device: `cpu`, `cuda`, `cuda:1`, ...
            dtype: Type of the weights and the cache.
            device_lock: Held during each forward pass, so learner and engine take turns on a shared device. A
                single-threaded forward takes one core of a `DeviceLock`, and keeps it while there is work.
            max_slots: Sequences in the cache, including those between two turns.
            cache_bytes: Memory for the cache; when it is full, requests wait and idle sequences are evicted.
                None is 1 GiB, or on a GPU a quarter of the memory that the model leaves free, if that is
                more.
            iteration_tokens: Most tokens per forward pass; longer prompts take several.
            most_active: Most requests computed at a time; None chooses by device. If a larger batch is no
                more efficient, answering some requests early is better: their environments act while the
                others are computed.
            merged_adapters: Number of adapters whose merged weights are kept, each a copy of the layers that
                it adapts. With 0 an adapter's products are added to each layer's outputs.
            images: Source of image files for a model with image support; None refuses images.
            quantized: The format of the linear layers' weights, if it is not `dtype`.

        Raises:
            InvalidRequestError: This engine cannot run the model.
        """
        self._facts: ModelFacts = read_model_facts(model_directory)
        self._turns = EngineTurns(device_lock or threading.Lock())
        self._iteration_tokens = iteration_tokens
        if most_active is None:
            most_active = _MOST_ACTIVE_ON_CPU if device == "cpu" else max_slots
        self._most_active = most_active
        with device_lock or nullcontext():
            self._model = PackedModel(
                model_directory,
                device=torch.device(device),
                dtype=dtype,
                merged_limit=merged_adapters,
                quantized=quantized,
            )
        if images is not None and self._facts.image_token_id is not None:
            known = shared(images)
            self._model.show_images(
                known.reader(model_directory, self._facts.image_token_id),
                known.base_features(model_directory, self._model.device, dtype),
            )
        self._intake = RequestIntake(self._facts, self._model)
        self._limits = SlotLimits(
            slots=max_slots,
            bytes=_cache_bytes(self._model.device) if cache_bytes is None else cache_bytes,
            length=self._facts.context_length,
        )
        self._counters = Counters()
        self._busy_seconds = 0.0
        self._runs = BatchRuns(self._model, self._intake, self._limits, self._counters, iteration_tokens)
        self._scheduler = self._new_scheduler(self._limits, self._most_active)
        self._wake = threading.Condition()
        self._inbox: list[tuple[Taken, Deliver]] = []
        self._new_batches: list[Batch] = []
        self._streams = OpenStreams()
        self._calls: list[Callable[[], None]] = []
        self._batches: SeparateBatches[Batch] = SeparateBatches(BATCHES_AT_ONCE)
        self._closing = self._asleep = False
        self._thread = threading.Thread(target=self._run, name="transformers-engine", daemon=True)
        self._thread.start()

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and completion together."""
        return self._facts.context_length

    @property
    def busy_seconds(self) -> float:
        """Seconds the engine worked, not counting waits for the device lock."""
        return self._busy_seconds

    def stats(self) -> Counters:
        """Return the engine's counts since its start, to show where its time goes."""
        return replace(self._counters)

    def submit(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        """Queue requests; each is answered exactly once through `deliver`."""
        self._intake.read_images(requests)
        with self._wake:
            if not self._closing:
                self._inbox.append((self._intake.take(requests), deliver))
                self._wake.notify()
                return
        # Without the lock, as the callback may submit another request.
        deliver([failure(request, engine_closing()) for request in requests])

    def generate_together(self, requests: Sequence[SampleRequest]) -> list[Completion | SampleFailure]:
        """Sample these requests as one separate batch with a fresh cache; bitwise reproducible."""
        result: Future[Sequence[Completion | SampleFailure]] = Future()
        self.submit_together(requests, result.set_result)
        return list(result.result())

    def submit_together(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        """Like `generate_together`, without waiting.

        Its forwards alternate with those of other requests, so it delays them, but does not stop them.
        """
        if not requests:
            deliver([])
            return
        self._intake.read_images(requests)
        with self._wake:
            if not self._closing:
                self._new_batches.append(Batch(self._intake.take(requests), deliver))
                self._wake.notify()
                return
        deliver([failure(request, engine_closing()) for request in requests])

    def publish(self, policy: str, version: int, weights: PolicyWeights, *, let_finish: bool = False) -> str:
        """Replace a policy's version by `policy@version`; return the weights' SHA-256."""
        self._model.policies.publish(policy, version, weights, let_finish=let_finish)
        with self._wake:
            self._wake.notify()  # See `retire`.
        return weights_sha256(weights)

    def retire(self, policy: str) -> None:
        """Remove a policy, its weights and its caches."""
        self._model.policies.retire(policy)
        with self._wake:
            self._wake.notify()  # the engine's thread may still reference the last used weights

    def loaded(self) -> dict[str, int]:
        """Published policies and their newest versions."""
        return self._model.policies.loaded()

    @property
    def asleep(self) -> bool:
        """Whether `sleep` emptied the cache and there was no request since."""
        return self._asleep

    def sleep(self) -> bool:
        """Free the cache and the adapters' merged weights; False while requests are in progress."""
        result: Future[bool] = Future()

        def call() -> None:
            if self._scheduler.idle and not self._batches:
                # The new one allocates memory on first use.
                self._scheduler = self._new_scheduler(self._limits, self._most_active)
                self._model.policies.forget_merged()
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
                self._asleep = True
            result.set_result(self._asleep)

        with self._wake:
            if self._closing or self._inbox or self._new_batches:
                return False
            self._calls.append(call)
            self._wake.notify()
        return result.result()

    def wake(self) -> None:
        """Do nothing: memory is allocated again when needed."""
        self._asleep = False

    def close(self) -> None:
        """Stop; unanswered requests fail with ServiceUnavailableError."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        # A callback, which runs in that thread, may be what closes the engine.
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # --- the engine's thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._has_news or self._has_work):
                    self._turns.rest()
                    # Else only the next forward would free them, and none is coming.
                    self._model.policies.free_retired()
                    self._wake.wait()
                inbox, self._inbox = self._inbox, []
                batches, self._new_batches = self._new_batches, []
                calls, self._calls = self._calls, []
                closing = self._closing
            # Before the calls: `sleep` must see the requests that came with it.
            self._begin(inbox, batches)
            for call in calls:
                call()
            if closing:
                self._turns.rest()
                deliver_answered(self._intake.left(self._scheduler.drain(engine_closing())))
                for batch in self._batches.drain():
                    self._runs.give_up(batch, engine_closing())
                return
            self._compute()

    @property
    def _has_news(self) -> bool:
        return bool(self._inbox or self._new_batches or self._calls or self._closing)

    @property
    def _has_work(self) -> bool:
        return bool(self._batches) or not self._scheduler.idle

    def _begin(self, inbox: list[tuple[Taken, Deliver]], batches: list[Batch]) -> None:
        """Queue what has been submitted; afterwards the lists are empty, so they keep no cache alive."""
        if inbox or batches:
            self._asleep = False
        for taken, deliver in inbox:
            self._accept(taken, deliver)
        for batch in batches:
            self._batches.add(batch.owner, batch)
        inbox.clear()
        batches.clear()

    def _compute(self) -> None:
        """Compute one step of the queue or of a separate batch, whichever has had less than its part."""
        begin = self._busy_seconds
        for batch in self._batches.remove_waiting(lambda batch: batch.unwanted):
            self._runs.give_up(batch, sender_gone(None))
        if self._batches.is_due(queue_idle=self._scheduler.idle):
            tenants, batch = self._scheduler.tenants, self._batches.next()
            is_done = self._runs.step(batch, self._turns, self._advance)
            self._batches.batch_took(self._busy_seconds - begin, queue_tenants=tenants)
            if is_done:
                self._batches.remove(batch)
        else:
            self._step()
            self._batches.queue_took(self._busy_seconds - begin)

    def _step(self) -> None:
        try:
            done = self._advance(self._scheduler)
        except Exception as error:
            # The scheduler's state can no longer be trusted: start over instead of blocking everyone.
            _log.exception("the slot scheduler failed; its requests are answered with an error")
            end_if_exhausted(error)
            done = self._intake.left(
                self._scheduler.drain(
                    InternalServiceError(
                        "the engine is in an unexpected state",
                        hint=f"see {SERVICE_LOG}",
                        code=out_of_memory_code(error),
                    )
                )
            )
            self._scheduler = self._new_scheduler(self._limits, self._most_active)
        deliver_answered(done)
        if self._streams:
            self._streams.deliver()

    def _accept(self, taken: Taken, deliver: Deliver) -> None:
        states, refused = self._intake.states(taken, deliver)
        self._scheduler.add(states)
        self._streams.add(states)
        if refused:
            deliver_to(deliver, refused)

    def _advance(self, scheduler: SlotScheduler) -> list[RequestState]:
        begin, waited = time.perf_counter(), self._turns.waited_seconds
        try:
            return self._intake.left(scheduler.step(self._turns))
        finally:
            waited = self._turns.waited_seconds - waited
            self._busy_seconds += time.perf_counter() - begin - waited

    def _new_scheduler(self, limits: SlotLimits, most_active: int) -> SlotScheduler:
        return SlotScheduler(
            self._model,
            limits,
            self._counters,
            iteration_tokens=self._iteration_tokens,
            most_active=most_active,
        )


def _cache_bytes(device: torch.device) -> int:
    # The learner, which starts later, takes half of the rest of the GPU's memory.
    free = int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else 0
    return max(_LEAST_CACHE_BYTES, free // _PART_OF_A_GPUS_MEMORY)
