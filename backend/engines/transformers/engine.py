"""The transformers engine: samples with transformers on this process's device, without a server.

One engine thread computes; public methods only pass data to it or take a lock briefly.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from backend.catalog.models import ModelFacts, read_model_facts
from backend.compute.device_lock import DeviceLock, KeptCore
from backend.compute.weight_formats import Quantization
from backend.compute.weights import PolicyWeights, weights_sha256
from backend.engines.failures import failure, images_refused, sender_gone, version_gone
from backend.engines.protocol import Deliver
from backend.engines.stop_strings import stops_of, stops_refused
from backend.engines.structured import structure_refused
from backend.engines.transformers.loaded_policies import LoadedPolicy
from backend.engines.transformers.open_streams import OpenStreams
from backend.engines.transformers.packed_model import PackedModel
from backend.engines.transformers.request_state import RequestState
from backend.engines.transformers.separate_batches import SeparateBatches
from backend.engines.transformers.slot_scheduler import SlotScheduler
from backend.engines.transformers.slot_table import Counters, SlotLimits
from backend.errors import SERVICE_LOG
from backend.vision.pixels import ImageSource
from backend.vision.shared_caches import SharedImages, shared
from tinkergym.errors import (
    InternalServiceError,
    InvalidRequestError,
    PromptTooLongError,
    ServiceUnavailableError,
    TinkerGymError,
)
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest

_log = logging.getLogger(__name__)

_MOST_ACTIVE_ON_CPU = 128
"""Half of 256 games act in their environments while the others are computed. On 2 cores, which both share, a
step takes as long as with all at once, but the engine rarely waits: 5 instead of 10 % of a step are neither
sampling nor learning."""

_BATCH_WORK_ON_CPU = 10**10
_BATCH_TOKENS_ON_CPU = 512
"""A forward of a separate batch has at most so many tokens times parameters, or tokens if these are more: the
requests of others wait until it ends. With the smallest models, whose logprobs are those of the learner to
the last bit, it is larger than usual, because a prompt that is cut is rounded in another way."""

_BATCHES_AT_ONCE = 4
"""Separate batches, of different tenants, that have a cache at a time; on a GPU they share its memory."""

_LEAST_CACHE_BYTES = 1 << 30
_PART_OF_A_GPUS_MEMORY = 4

_Taken = list[tuple[SampleRequest, LoadedPolicy | None]]
"""Requests, each with its policy if that is loaded."""


@dataclass(eq=False, slots=True)
class _Batch:
    """Requests that are sampled as one separate batch."""

    taken: _Taken
    deliver: Deliver
    scheduler: SlotScheduler | None = None
    """Made when the batch begins, because it has a cache."""
    outcomes: list[RequestState | Completion | SampleFailure] = field(default_factory=list)

    @property
    def owner(self) -> str:
        """The tenant; without one, the policy is used to identify its job."""
        request, _ = self.taken[0]
        return request.seat.owner or f"/{request.policy}"

    @property
    def unwanted(self) -> bool:
        """Whether the requester is gone, see `Deliver`."""
        return bool(getattr(self.deliver, "gone", False))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Counts since the engine's start, to show where its time goes."""

    iterations: int
    """Forward passes of the model."""
    prefilled_tokens: int
    copied_tokens: int
    """Prompt tokens copied from an equal prompt instead of being computed."""
    reused_tokens: int
    """Prompt tokens found in the cache of the request's session."""
    sampled_tokens: int
    evictions: int
    """Cached sequences evicted while they could still have been reused."""
    preemptions: int
    failed_forwards: int
    slots: int
    slot_tokens: int
    """Current length of each slot."""


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
            merged_adapters: Number of adapters whose merged weights are kept.
            images: Source of image files for a model with image support; None refuses images.
            quantized: The format of the linear layers' weights, if it is not `dtype`.

        Raises:
            InvalidRequestError: This engine cannot run the model.
        """
        self._facts: ModelFacts = read_model_facts(model_directory)
        self._turns = _Turns(device_lock or threading.Lock())
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
        self._limits = SlotLimits(
            slots=max_slots,
            bytes=_cache_bytes(self._model.device) if cache_bytes is None else cache_bytes,
            length=self._facts.context_length,
        )
        self._counters = Counters()
        self._busy_seconds = 0.0
        self._scheduler = self._new_scheduler(self._limits, self._most_active)
        self._wake = threading.Condition()
        self._inbox: list[tuple[_Taken, Deliver]] = []
        self._new_batches: list[_Batch] = []
        self._streams = OpenStreams()
        self._calls: list[Callable[[], None]] = []
        self._batches: SeparateBatches[_Batch] = SeparateBatches(_BATCHES_AT_ONCE)
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

    def stats(self) -> EngineStats:
        """Return the engine's counters."""
        counters, table = self._counters, self._scheduler.table
        return EngineStats(
            iterations=counters.iterations,
            prefilled_tokens=counters.prefilled_tokens,
            copied_tokens=counters.copied_tokens,
            reused_tokens=counters.reused_tokens,
            sampled_tokens=counters.sampled_tokens,
            evictions=counters.evictions,
            preemptions=counters.preemptions,
            failed_forwards=counters.failed_forwards,
            slots=table.cache.slots,
            slot_tokens=table.cache.length,
        )

    def submit(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        """Queue requests; each is answered exactly once through `deliver`."""
        self._read_images(requests)
        with self._wake:
            if not self._closing:
                self._inbox.append((self._take(requests), deliver))
                self._wake.notify()
                return
        deliver([failure(request, _closed()) for request in requests])

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
        self._read_images(requests)
        with self._wake:
            if not self._closing:
                self._new_batches.append(_Batch(self._take(requests), deliver))
                self._wake.notify()
                return
        deliver([failure(request, _closed()) for request in requests])

    def publish(self, policy: str, version: int, weights: PolicyWeights, *, let_finish: bool = False) -> str:
        """Replace a policy's version by `policy@version`; return the weights' SHA-256."""
        self._model.policies.publish(policy, version, weights, let_finish=let_finish)
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
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # --- the engine's thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._has_news or self._has_work):
                    self._turns.rest()
                    self._model.policies.let_go_of_gone()
                    self._wake.wait()
                inbox, self._inbox = self._inbox, []
                batches, self._new_batches = self._new_batches, []
                calls, self._calls = self._calls, []
                closing = self._closing
            self._begin(inbox, batches)
            for call in calls:
                call()
            if closing:
                self._turns.rest()
                _deliver(self._left(self._scheduler.drain(_closed())))
                for batch in self._batches.drain():
                    self._give_up(batch, _closed())
                return
            self._compute()

    @property
    def _has_news(self) -> bool:
        return bool(self._inbox or self._new_batches or self._calls or self._closing)

    @property
    def _has_work(self) -> bool:
        return bool(self._batches) or not self._scheduler.idle

    def _begin(self, inbox: list[tuple[_Taken, Deliver]], batches: list[_Batch]) -> None:
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
            self._give_up(batch, sender_gone(None))
        if self._batches.is_due(queue_idle=self._scheduler.idle):
            tenants, batch = self._scheduler.tenants, self._batches.next()
            is_done = self._step_batch(batch)
            self._batches.batch_took(self._busy_seconds - begin, queue_tenants=tenants)
            if is_done:
                self._batches.remove(batch)
        else:
            self._step()
            self._batches.queue_took(self._busy_seconds - begin)

    def _step(self) -> None:
        try:
            done = self._advance(self._scheduler)
        except Exception:
            # The scheduler's state can no longer be trusted: start over instead of blocking everyone.
            _log.exception("the slot scheduler failed; its requests are answered with an error")
            done = self._left(
                self._scheduler.drain(
                    InternalServiceError("the engine is in an unexpected state", hint=f"see {SERVICE_LOG}")
                )
            )
            self._scheduler = self._new_scheduler(self._limits, self._most_active)
        _deliver(done)
        if self._streams:
            self._streams.deliver()

    def _read_images(self, requests: Sequence[SampleRequest]) -> None:
        """Read images in the caller's thread, while the engine computes; failures are reported later."""
        if self._model.images is not None:
            for request in requests:
                if request.images:
                    self._model.images.refusal(request)

    def _take(self, requests: Sequence[SampleRequest]) -> _Taken:
        """Determine which version answers each request."""
        policies = self._model.policies
        return [(request, policies.take(request.policy, request.policy_version)) for request in requests]

    def _left(self, states: list[RequestState]) -> list[RequestState]:
        """Release the versions of answered requests."""
        for state in states:
            self._model.policies.leave(state.policy)
        return states

    def _accept(self, taken: _Taken, deliver: Deliver) -> None:
        states, refused = self._states(taken, deliver)
        self._scheduler.add(states)
        self._streams.add(states)
        if refused:
            _call(deliver, refused)

    def _states(
        self, taken: _Taken, deliver: Deliver
    ) -> tuple[list[RequestState], list[Completion | SampleFailure]]:
        states: list[RequestState] = []
        refused: list[Completion | SampleFailure] = []
        for request, policy in taken:
            error = self._refusal(request) if policy is not None else version_gone(request)
            if policy is None or error is not None:
                refused.append(failure(request, error or version_gone(request)))
                if policy is not None:
                    self._model.policies.leave(policy)
                continue
            limit = min(len(request.prompt_ids) + request.max_tokens, self.context_length)
            stops = stops_of(request, self._facts.directory)
            states.append(
                RequestState(
                    request=request,
                    policy=policy,
                    deliver=deliver,
                    limit=limit,
                    stop_strings=stops,
                    tokens=self._tokens(request),
                )
            )
        return states, refused

    def _refusal(self, request: SampleRequest) -> TinkerGymError | None:
        if len(request.prompt_ids) >= self.context_length:
            return PromptTooLongError(
                f"a prompt of {len(request.prompt_ids)} tokens fills the context of {self.context_length}",
                hint="leave room for at least one completion token",
                field="prompt_ids",
            )
        if min(request.prompt_ids) < 0 or max(request.prompt_ids) >= self._model.vocabulary:
            return InvalidRequestError(
                f"the prompt contains a token id outside [0, {self._model.vocabulary})",
                hint="was it encoded with another model's tokenizer?",
                field="prompt_ids",
            )
        return (
            self._images_refused(request)
            or stops_refused(request, self._facts.directory)
            or structure_refused(request, "transformers")
        )

    def _images_refused(self, request: SampleRequest) -> TinkerGymError | None:
        if self._model.images is None:
            return images_refused(request)
        return self._model.images.refusal(request)

    def _tokens(self, request: SampleRequest) -> list[int]:
        if self._model.images is None or not request.images:
            return list(request.prompt_ids)
        return self._model.images.placed(request)

    def _step_batch(self, batch: _Batch) -> bool:
        """Compute a step of a separate batch; return whether it is done."""
        self._turns.patient = True
        try:
            scheduler = batch.scheduler or self._begun(batch)
            self._advance(scheduler)
        except Exception as error:
            _log.exception("a batch of %d requests failed", len(batch.taken))
            self._give_up(
                batch, InternalServiceError(f"the engine failed: {error}", hint=f"see {SERVICE_LOG}")
            )
            return True
        finally:
            self._turns.patient = False
        if not scheduler.idle:
            return False
        _call(batch.deliver, [_answer(outcome) for outcome in batch.outcomes])
        return True

    def _begun(self, batch: _Batch) -> SlotScheduler:
        """Give a batch a cache, and queue its requests there."""
        taken = batch.taken
        longest = max(len(r.prompt_ids) + min(r.max_tokens, 64) for r, _ in taken)
        # Limits are the same in any company: the last bit of a number depends on what is computed with it.
        limits = replace(self._limits, first_slots=len(taken), first_length=longest)
        most_tokens = self._iteration_tokens
        if self._model.device.type == "cpu":
            few = max(_BATCH_TOKENS_ON_CPU, _BATCH_WORK_ON_CPU // self._model.parameter_count)
            most_tokens = min(few, most_tokens)
        else:
            limits = replace(limits, bytes=limits.bytes // _BATCHES_AT_ONCE)
        batch.scheduler = scheduler = SlotScheduler(
            self._model,
            limits,
            self._counters,
            iteration_tokens=most_tokens,
            # No request is answered before all are done.
            most_active=len(taken),
            # For the same reason, no tenant counts as gone after some time.
            clock=lambda: 0.0,
        )
        for request, policy in taken:
            # Sessions would make the result depend on earlier calls; here each request is independent.
            alone = request.model_copy(update={"session_id": ""})
            states, refused = self._states([(alone, policy)], batch.deliver)
            scheduler.add(states)
            batch.outcomes += [*states, *refused]
        return scheduler

    def _give_up(self, batch: _Batch, error: TinkerGymError) -> None:
        """Answer all requests of a batch with an error."""
        if batch.scheduler is None:
            for _, policy in batch.taken:
                if policy is not None:
                    self._model.policies.leave(policy)
        else:
            self._left(batch.scheduler.drain(error))
        _call(batch.deliver, [failure(request, error) for request, _ in batch.taken])

    def _advance(self, scheduler: SlotScheduler) -> list[RequestState]:
        begin, waited = time.perf_counter(), self._turns.waited_seconds
        try:
            return self._left(scheduler.step(self._turns))
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


class _Turns:
    """A device used by the engine's thread; it measures the time spent waiting."""

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self._lock = lock
        self._core = KeptCore(lock) if isinstance(lock, DeviceLock) else None
        self.waited_seconds = 0.0
        self.patient = False
        """Whether to wait for all cores instead of using the free ones: then the result does not depend on
        other threads, not even in the last bit."""

    @contextmanager
    def taken(self, *, alone: bool, shares: bool) -> Iterator[None]:
        """Acquire it; a thread that computes alone acquires one core of a CPU.

        Args:
            alone: Whether it does.
            shares: Whether that core is shared equally with another thread that waits for one.
        """
        if self._core is not None:
            self._core.shares = shares
        if self._core is None:
            place = self._lock
        elif alone:
            place = self._core
        else:
            place = self._core.with_others(wait=self.patient)
        begin = time.perf_counter()
        with place:
            self.waited_seconds += time.perf_counter() - begin
            yield

    def rest(self) -> None:
        """Release everything: there is no work."""
        if self._core is not None:
            self._core.give_back()


def _cache_bytes(device: torch.device) -> int:
    # The learner, which starts later, takes half of the rest of the GPU's memory.
    free = int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else 0
    return max(_LEAST_CACHE_BYTES, free // _PART_OF_A_GPUS_MEMORY)


def _answer(outcome: RequestState | Completion | SampleFailure) -> Completion | SampleFailure:
    answer = outcome.answer if isinstance(outcome, RequestState) else outcome
    assert answer is not None
    return answer


def _deliver(states: Sequence[RequestState]) -> None:
    answers: dict[Deliver, list[Completion | SampleFailure]] = {}
    for state in states:
        assert state.answer is not None
        answers.setdefault(state.deliver, []).append(state.answer)
    for deliver, batch in answers.items():
        _call(deliver, batch)


def _call(deliver: Deliver, answers: Sequence[Completion | SampleFailure]) -> None:
    try:
        deliver(answers)
    except Exception:
        _log.exception("a callback for %d completions failed; the engine continues", len(answers))


def _closed() -> ServiceUnavailableError:
    return ServiceUnavailableError("the engine is closing", hint="repeat the request in a moment")
