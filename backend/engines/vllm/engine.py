"""The vLLM engine: samples with vLLM in a separate process, whose death loses no requests.

This side tracks every policy and every unanswered request; the process (`host.py`) only knows what it was
told. When it dies or hangs, it is killed with all its children and restarted; it receives every policy again,
passes a canary request, and then receives the unanswered requests. vLLM itself is only imported in that
process.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import shutil
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from backend.catalog.models import ModelFacts, read_model_facts
from backend.compute.busy_clock import BusyClock
from backend.compute.weights import AdapterWeights, FullWeights, PolicyWeights, require_finite, weights_sha256
from backend.config import VLLM_LEAST_TEMPERATURE, DType, VllmSettings
from backend.engines.failures import failure, sender_gone, version_gone
from backend.engines.protocol import BASE_POLICY, Deliver
from backend.engines.stop_strings import stops_refused
from backend.engines.structured import structure_impossible, structure_unusable
from backend.engines.text_only import images_refused
from backend.engines.vllm.extra import require_vllm
from backend.engines.vllm.files import (
    adapted_modules,
    as_in_files,
    misfit,
    model_shapes,
    names_to_load,
    write_adapter,
    write_nothing,
)
from backend.engines.vllm.folder import private_folder
from backend.engines.vllm.image_files import HandedImages
from backend.engines.vllm.process import HOST, Message, VllmProcess, reason_in
from backend.engines.vllm.settings import engine_arguments, has_tokenizer, process_environment, sleep_mode
from backend.engines.vllm.shared_weights import share_in_file, share_on_device
from backend.errors import SERVICE_LOG
from backend.fairness.fair_places import FairPlaces
from backend.vision.pixels import ImageSource
from backend.vision.shared import SharedImages, shared
from tinkergym.errors import (
    InternalServiceError,
    InvalidRequestError,
    PromptTooLongError,
    ServiceUnavailableError,
    StorageFullError,
    TinkerGymError,
)
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest
from tinkergym.schema.structured import Regex

_log = logging.getLogger(__name__)
_BASE_KEY = 0
_SHARE_ON_THE_HOST = (
    "set vllm.full_weights=host; docs/operating/engines.md lists the requirements of CUDA IPC"
)
_SEE_THE_LOG = "see logs/vllm.log in the service's data_dir"
_BATCHES_AT_ONCE = 4
"""Batches computed together that the process has at a time; it computes one after the other."""
_TRIES = 3
"""A request that was in progress this many times when vLLM died is considered the cause."""
_FAILED_STARTS = 3
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_LOOK_SECONDS = 1.0
"""How often to look for requests whose sender is gone."""


@dataclass(eq=False, slots=True, kw_only=True)
class _Policy:
    key: int
    """Never reused, so vLLM cannot confuse it with another policy or version."""
    name: str
    version: int
    folder: Path
    handed_over: Message = field(default_factory=dict)
    """How the process reads its weights."""
    memory: Tensor | None = None
    """The GPU memory kept for the process."""

    def message(self) -> Message:
        return {"policy": self.key, "name": f"{self.name}@{self.version}", **self.handed_over}

    def take_back(self) -> None:
        """Free the weights' memory; no process may read them any more."""
        self.memory = None
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(eq=False, slots=True)
class _Open:
    """A message awaiting its answer."""

    message: Message
    request: SampleRequest | None = None
    deliver: Deliver | None = None
    batch_of: str | None = None
    """The tenant, if these are requests that are computed together."""
    result: Future[Message] = field(default_factory=Future)
    tries: int = 0
    samples: frozenset[int] = field(init=False)
    """Keys of the policies that answer it."""
    dropped: set[int] = field(default_factory=set)
    """Those of them removed since; their results no longer count."""

    def __post_init__(self) -> None:
        alone = [] if self.request is None else [self.message]
        self.samples = frozenset(each["policy"] for each in self.message.get("requests", alone))

    @property
    def unwanted(self) -> bool:
        """Whether the sender is gone, see `Deliver`."""
        return bool(getattr(self.deliver, "gone", False))


class VllmEngine:
    """A `SamplingEngine` over vLLM; see `protocol.py` for the contract."""

    def __init__(
        self,
        model_directory: Path,
        *,
        device: str = "cpu",
        threads: int = 1,
        settings: VllmSettings | None = None,
        log: Path | None = None,
        host: Sequence[str] = HOST,
        dtype: DType = "float32",
        images: ImageSource | SharedImages | None = None,
    ) -> None:
        """Start vLLM and wait until it has answered a canary request.

        Args:
            model_directory: As `resolve_model` returns it.
            device: `cpu`, `cuda`, `cuda:1`, ...
            threads: OpenMP threads of vLLM on a CPU.
            settings: The operator's settings.
            log: File for the output of vLLM's processes; None keeps it only while the engine lives.
            host: The command that starts the vLLM process, without its last argument.
            dtype: Type of weights and cache.
            images: Source of image files for a model with image support; None refuses images.

        Raises:
            MissingExtraError: vLLM is not installed.
            InvalidRequestError: vLLM cannot run the model, or `settings` need a GPU and there is none.
        """
        if host == HOST:
            require_vllm()
        self._settings = settings = settings or VllmSettings()
        self._device, self._threads = torch.device(device), threads
        _refuse_device_weights(settings, self._device)
        self._facts: ModelFacts = read_model_facts(model_directory)
        self._shapes = model_shapes(model_directory)
        self._host = host
        self._folder = private_folder(self._facts.parameters * 4)
        self._log_file = log or self._folder / "vllm.log"
        length = self._facts.context_length
        self._images = self._handed_images(images)
        self._arguments = engine_arguments(
            settings, model_directory, length, device, dtype, shapes=self._shapes, sees=bool(self._images)
        )
        self._numbers, self._keys = itertools.count(1), itertools.count(_BASE_KEY + 1)
        self._lock, self._writing_nothing = threading.Lock(), threading.Lock()
        self._policies: dict[str, _Policy] = {}
        self._finishing: dict[int, _Policy] = {}
        """Older versions that finish their requests, by key."""
        self._doomed: dict[int, _Policy] = {}
        """Removed policies whose weights are kept while the process reads them."""
        self._open: dict[int, _Open] = {}
        # vLLM's own queue does not distinguish tenants. Between two batches of one, others have their turn.
        self._places = FairPlaces(self._settings.max_sequences)
        self._batches = FairPlaces(_BATCHES_AT_ONCE, most_of_one=1)
        self._process: VllmProcess | None = None
        self._ready = threading.Event()
        self._reused_tokens = 0
        self._lives = 0
        """How often vLLM has become ready."""
        self._told = 0
        """How often a new process has received the policies."""
        self._sleep_mode = sleep_mode(self._settings, device)
        self._asleep = False
        self._newest = 0
        """The number of the last message."""
        self._naps = 0
        """How often it was stopped in order to sleep."""
        self._awake = threading.Event()
        self._awake.set()
        self._resting = threading.Event()
        """Set while there is no process, because it sleeps."""
        self._closing = False
        self._broken: TinkerGymError | None = None
        self._busy = BusyClock()
        self._thread = threading.Thread(target=self._run, name="vllm-engine", daemon=True)
        self._start()

    def _handed_images(self, images: ImageSource | SharedImages | None) -> HandedImages | None:
        directory, placeholder = self._facts.directory, self._facts.image_token_id
        if images is None or placeholder is None:
            return None
        return HandedImages(shared(images).reader(directory, placeholder), self._folder / "images")

    def _start(self) -> None:
        self._thread.start()
        self._ready.wait()
        if self._broken is not None:
            self.close()
            raise self._broken

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and completion together."""
        return self._facts.context_length

    @property
    def busy_seconds(self) -> float:
        """Seconds in which at least one request was in progress."""
        return self._busy.seconds

    @property
    def reused_tokens(self) -> int:
        """Prompt tokens found in the cache."""
        return self._reused_tokens

    @property
    def restarts(self) -> int:
        """How often vLLM was restarted because it had died or hung."""
        return max(0, self._lives - 1 - self._naps)

    @property
    def host_pid(self) -> int | None:
        """The process that runs vLLM, if any; vLLM's engine core is its child."""
        process = self._process
        return process.pid if process else None

    def submit(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        """Queue requests; each is answered exactly once through `deliver`."""
        refused: list[Completion | SampleFailure] = []
        self._read_images(requests)
        with self._lock:
            for asked in requests:
                request = self._settled(asked)
                message = self._sample_message(request)
                if isinstance(message, TinkerGymError):
                    refused.append(failure(request, message))
                else:
                    self._ask(_Open({"do": "sample", **message}, request, deliver))
            if self._images is not None:
                self._images.tidy(self._images_in_use)
        if refused:
            deliver(refused)

    def generate_together(self, requests: Sequence[SampleRequest]) -> list[Completion | SampleFailure]:
        """Sample these requests as one separate batch with a fresh cache; bitwise reproducible.

        On one machine, with one build of vLLM and the same settings. Requests of full-parameter policies form
        separate batches, one after the other.
        """
        result: Future[Sequence[Completion | SampleFailure]] = Future()
        self.submit_together(requests, result.set_result)
        return list(result.result())

    def submit_together(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        """Like `generate_together`, without waiting. One batch of a tenant is sampled at a time."""
        answers: list[Completion | SampleFailure | None] = [None] * len(requests)
        messages: dict[int, Message] = {}
        self._read_images(requests)
        with self._lock:
            requests = [self._settled(request) for request in requests]
            # A new salt acts as a fresh cache.
            salt = f"together {next(self._numbers)}"
            for place, request in enumerate(requests):
                message = self._sample_message(request)
                if isinstance(message, TinkerGymError):
                    answers[place] = failure(request, message)
                else:
                    messages[place] = message | {
                        "id": next(self._numbers),
                        "salt": f"{salt} {message['salt']}",
                    }
            owner = _owner(requests[0]) if requests else ""
            asked = {"do": "together", "requests": list(messages.values())}
            entry = _Open(asked, deliver=deliver, batch_of=owner)
            if messages:
                self._ask(entry)

        def finish(found: Message) -> None:
            several = found.get("answers", [found] * len(messages))
            try:
                for (place, message), answer in zip(messages.items(), several, strict=True):
                    gone = message["policy"] in entry.dropped
                    answers[place] = self._completion(requests[place], {"gone": True} if gone else answer)
            except Exception as error:
                _log.exception("vLLM's answer to %d requests cannot be read", len(messages))
                unreadable = InternalServiceError(f"vLLM's answer cannot be read: {error!r}")
                answers[:] = [failure(request, unreadable) for request in requests]
            deliver([answer for answer in answers if answer is not None])

        if not messages:
            finish({})
            return
        # In its own thread: the result may arrive while the lock is held, and the callback may need it.
        entry.result.add_done_callback(
            lambda done: threading.Thread(target=finish, args=(done.result(),), daemon=True).start()
        )

    def publish(self, policy: str, version: int, weights: PolicyWeights, *, let_finish: bool = False) -> str:
        """Replace a policy's version by `policy@version`; return the weights' SHA-256.

        Raises:
            InvalidRequestError: vLLM cannot use these weights; the previous version stays published.
            ServiceUnavailableError: The engine is closing.
            StorageFullError: There is no space to pass the weights.
        """
        stored = as_in_files(weights, self._facts.directory, self._shapes)
        self._require_loadable(policy, stored)
        key = next(self._keys)
        made = _Policy(key=key, name=policy, version=version, folder=self._folder / f"policy-{key}")
        try:
            self._hand_over(made, stored)
            arrived = self._load(made, let_finish=let_finish)
        except BaseException as error:
            made.take_back()
            if self._closing or self._broken is not None:
                shutil.rmtree(self._folder, ignore_errors=True)  # perhaps created just now
                if isinstance(error, OSError):
                    raise (self._broken or _closing()) from error
            if isinstance(error, OSError) and error.errno in _NO_SPACE:
                raise StorageFullError(
                    f"no space left for the weights of policy {policy!r} under {self._folder}",
                    hint="free some space; weights are kept in memory if /dev/shm is large enough",
                ) from error
            raise
        same = stored is not weights and arrived == weights_sha256(stored)
        return weights_sha256(weights) if same else arrived

    def retire(self, policy: str) -> None:
        """Remove a policy, its weights and its caches."""
        with self._lock:
            gone = self._drop(self._policies.pop(policy, None)) + self._drop_finishing(policy)
        _deliver(gone)

    def loaded(self) -> dict[str, int]:
        """Published policies and their newest versions."""
        with self._lock:
            return {name: policy.version for name, policy in self._policies.items()}

    @property
    def asleep(self) -> bool:
        """Whether `sleep` freed memory and there was no request since."""
        return self._asleep

    def sleep(self) -> bool:
        """Free memory as set by `vllm.sleep`; False while requests are in progress."""
        entry = _Open({"do": "sleep"})
        with self._lock:
            if self._asleep:
                return True
            if self._open or self._closing or not self._ready.is_set() or self._process is None:
                return False
            if self._sleep_mode == "offload":
                self._ask(entry)
            else:
                self._asleep = True
                self._naps += 1
                self._awake.clear()
                self._resting.clear()
                self._process.hang_up()
        if self._sleep_mode == "end":
            self._resting.wait()
            return self._asleep
        answer = entry.result.result()
        with self._lock:
            # A request in the meantime has woken it.
            self._asleep = self._newest == entry.message["id"] and not answer.keys() & {"error", "refused"}
            return self._asleep

    def wake(self) -> None:
        """Start to wake vLLM, without waiting."""
        with self._lock:
            if self._asleep and self._sleep_mode == "offload":
                self._ask(_Open({"do": "wake"}))
            else:
                self._rouse()

    def close(self) -> None:
        """Stop; unanswered requests fail with ServiceUnavailableError."""
        with self._lock:
            self._closing = True
            self._rouse()
            process = self._process
        if process is not None:
            process.hang_up()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _read_images(self, requests: Sequence[SampleRequest]) -> None:
        """Read images before taking the lock; failures are reported later."""
        for request in requests:
            if self._images is not None and request.images:
                self._images.refusal(request)

    # --- any thread, with the lock ---

    def _images_in_use(self) -> set[str]:
        messages = [entry.message for entry in self._open.values()]
        asked = [one for message in messages for one in message.get("requests", [message])]
        return {image["sha256"] for one in asked for image in one.get("images", [])}

    def _ask(self, entry: _Open) -> None:
        """Send a message now, or when vLLM is ready again."""
        if self._closing or self._broken is not None:
            error = self._broken or _closing()
            if entry.deliver is not None and entry.request is not None:
                # Not while holding the lock: the callback may submit another request.
                threading.Thread(target=_deliver, args=([(entry, error)],), daemon=True).start()
            else:
                entry.result.set_result({"refused": error})
            return
        self._rouse()
        number = entry.message.setdefault("id", next(self._numbers))
        self._open[number] = entry
        self._newest = number
        self._busy.count(len(self._open))
        if entry.batch_of is not None:
            self._batches.add(number, entry.batch_of)
        elif entry.request is not None:
            self._places.add(number, _owner(entry.request))
        else:
            self._send(entry)
        self._send_admitted()

    def _send(self, entry: _Open) -> None:
        if self._process is not None and self._ready.is_set():
            self._process.send(entry.message)

    def _is_sent(self, number: int, entry: _Open) -> bool:
        """Whether the process has the message, or would have it if it was ready."""
        if entry.batch_of is not None:
            return self._batches.inside(number)
        return entry.request is None or self._places.inside(number)

    def _send_admitted(self) -> None:
        for number in [*self._places.admit(), *self._batches.admit()]:
            self._send(self._open[number])

    def _left(self, numbers: Iterable[int]) -> None:
        """Mark these as done; others take their places."""
        for number in numbers:
            self._places.remove(number)
            self._batches.remove(number)
        self._busy.count(len(self._open))
        self._send_admitted()

    def _rouse(self) -> None:
        self._asleep = False
        self._resting.set()  # for a caller that waits until it sleeps
        self._awake.set()

    def _settled(self, request: SampleRequest) -> SampleRequest:
        """Return the request with the version that answers it."""
        version = self._newest_version(request.policy)
        if version is None or request.policy_version is not None:
            return request
        return request.model_copy(update={"policy_version": version})

    def _newest_version(self, name: str) -> int | None:
        if name == BASE_POLICY:
            return 0
        policy = self._policies.get(name)
        return policy.version if policy is not None else None

    def _sample_message(self, request: SampleRequest) -> Message | TinkerGymError:
        version = self._newest_version(request.policy)
        if version is None or request.policy_version != version:
            return version_gone(request)
        refused = self._refusal(request)
        if refused is not None:
            return refused
        key = _BASE_KEY if request.policy == BASE_POLICY else self._policies[request.policy].key
        return {
            "policy": key,
            "prompt": list(request.prompt_ids),
            "max_tokens": min(request.max_tokens, self.context_length - len(request.prompt_ids)),
            "temperature": request.temperature,
            "top_p": request.top_p,
            # vLLM uses signed 64-bit integers.
            "top_k": min(request.top_k, self._facts.vocabulary_size),
            "seed": request.seed,
            "stop": self._stops(request),
            "structured": _structure(request),
            "stop_strings": list(request.stop),
            "top_logprobs": min(request.top_logprobs, self._facts.vocabulary_size),
            "prompt_logprobs": request.prompt_logprobs,
            # cache entries.
            "salt": f"{key} {request.seat.owner}",
            "images": self._images.message(request.images) if self._images and request.images else [],
        }

    def _stops(self, request: SampleRequest) -> list[int]:
        return [token for token in request.stop_ids if 0 <= token < self._facts.vocabulary_size]

    def _refusal(self, request: SampleRequest) -> TinkerGymError | None:
        if len(request.prompt_ids) >= self.context_length:
            return PromptTooLongError(
                f"a prompt of {len(request.prompt_ids)} tokens fills the context of {self.context_length}",
                hint="leave room for at least one completion token",
                field="prompt_ids",
            )
        vocabulary = self._facts.vocabulary_size
        if min(request.prompt_ids) < 0 or max(request.prompt_ids) >= vocabulary:
            return InvalidRequestError(
                f"the prompt contains a token id outside [0, {vocabulary})",
                hint="was it encoded with another model's tokenizer?",
                field="prompt_ids",
            )
        refused = images_refused(request) if self._images is None else self._images.refusal(request)
        if refused is not None:
            return refused
        if 0 < request.temperature < VLLM_LEAST_TEMPERATURE:
            return InvalidRequestError(
                f"vLLM does not support temperature {request.temperature}",
                hint=f"use 0, or at least {VLLM_LEAST_TEMPERATURE}",
                field="temperature",
            )
        return stops_refused(request, self._facts.directory) or structure_impossible(
            request,
            model=str(self._facts.directory),
            has_tokenizer=has_tokenizer(self._facts.directory),
            has_stop=bool(self._stops(request)),
        )

    def _drop(self, policy: _Policy | None) -> list[tuple[_Open, TinkerGymError]]:
        """Remove a policy; return its requests that `_deliver` must answer, without the lock."""
        if policy is None:
            return []
        over: dict[int, _Open] = {}
        for number, entry in self._flying(policy).items():
            entry.dropped.add(policy.key)
            # Requests that are computed together may also use other policies.
            if entry.dropped == entry.samples:
                over[number] = entry
                if entry.request is None:
                    entry.result.set_result({"gone": True})
        self._abort(over)
        if self._process is None:
            policy.take_back()
        else:
            self._doomed[policy.key] = policy
            if self._ready.is_set():
                self._process.send({"do": "drop", "id": 0, "policy": policy.key})
        return [(entry, version_gone(entry.request)) for entry in over.values() if entry.request]

    def _abort(self, numbers: Collection[int]) -> None:
        """Stop waiting for these results; the caller answers the requests."""
        for number in numbers:
            del self._open[number]
        if self._process is not None and self._ready.is_set():
            self._process.send({"do": "abort", "id": 0, "ids": list(numbers)})
        self._left(numbers)

    def _drop_finishing(self, name: str) -> list[tuple[_Open, TinkerGymError]]:
        """Remove a policy's older versions like `_drop`."""
        gone: list[tuple[_Open, TinkerGymError]] = []
        for policy in [policy for policy in self._finishing.values() if policy.name == name]:
            gone += self._drop(self._finishing.pop(policy.key))
        return gone

    def _drop_finished(self) -> None:
        """Remove older versions without remaining requests."""
        for policy in list(self._finishing.values()):
            if not self._flying(policy):
                self._drop(self._finishing.pop(policy.key))

    def _flying(self, policy: _Policy) -> dict[int, _Open]:
        """Return the unanswered requests to the policy, by number."""
        return {number: entry for number, entry in self._open.items() if policy.key in entry.samples}

    # --- the publisher's thread ---

    def _require_loadable(self, policy: str, weights: PolicyWeights) -> None:
        require_finite(weights)
        strange = misfit(weights, self._shapes)
        if strange is not None:
            raise InvalidRequestError(
                f"the weights of policy {policy!r} do not fit the model at {strange!r}",
                hint="were they made for another model? full weights hold every parameter under its name",
            )
        if isinstance(weights, FullWeights) and self._facts.has_experts:
            # On a CPU vLLM (0.32.0) computes experts with copies that a reload does not update.
            raise InvalidRequestError(
                f"vLLM does not support full-parameter training of a mixture of experts (policy {policy!r})",
                hint="train an adapter (tg.LoRA), or run the service with engine=transformers",
                field="adapter",
            )
        if isinstance(weights, AdapterWeights):
            most = self._settings.max_adapter_rank
            if weights.rank > most:
                raise InvalidRequestError(
                    f"policy {policy!r} has an adapter of rank {weights.rank}; this engine supports at "
                    f"most {most}",
                    hint=f"set vllm.max_adapter_rank to {weights.rank} or more, or train a smaller adapter",
                    field="adapter.rank",
                )
            if not adapted_modules(weights):
                raise InvalidRequestError(f"the adapter of policy {policy!r} changes no linear layer")

    def _hand_over(self, made: _Policy, weights: PolicyWeights) -> None:
        """Put weights where vLLM's processes can read them."""
        if isinstance(weights, AdapterWeights):
            write_adapter(made.folder, weights)
            nothing = self._folder / "nothing"
            with self._writing_nothing:
                if not nothing.exists():
                    unfinished = nothing.with_name("nothing-yet")
                    write_nothing(unfinished, like=weights)
                    unfinished.rename(nothing)
            made.handed_over = {"path": str(made.folder), "nothing": str(nothing)}
            return
        if self._settings.full_weights == "host":
            made.folder.mkdir(mode=0o700)
            opening = share_in_file(weights.tensors, made.folder / "weights")
        else:
            try:
                made.memory, opening = share_on_device(weights.tensors, self._device)
            except torch.OutOfMemoryError as error:
                raise StorageFullError(
                    f"not enough memory on {self._device} for the weights of policy {made.name!r}",
                    hint="lower vllm.gpu_memory or idle_policies, or set vllm.full_weights=host",
                ) from error
            except RuntimeError as error:
                raise InvalidRequestError(
                    f"{self._device} cannot share the weights of policy {made.name!r}: {error}",
                    hint=_SHARE_ON_THE_HOST,
                    field="vllm.full_weights",
                ) from error
        made.handed_over = {"shared": opening, "names": names_to_load(weights, self._shapes)}

    def _load(self, made: _Policy, *, let_finish: bool) -> str:
        while True:
            entry = _Open({"do": "load", **made.message()})
            with self._lock:
                told = self._told
                self._ask(entry)
            answer = entry.result.result()
            if "refused" in answer:
                raise answer["refused"]
            if "error" in answer:
                raise InvalidRequestError(
                    f"vLLM cannot load policy {made.name!r}: {answer['error']}",
                    hint=_SHARE_ON_THE_HOST
                    if made.memory is not None
                    else "was the adapter made for this model? vLLM only adapts linear layers of the decoder",
                )
            with self._lock:
                if told != self._told:
                    continue  # vLLM was restarted in the meantime, and the new process did not receive it
                old, gone = self._policies.get(made.name), []
                if old is not None and let_finish:
                    self._finishing[old.key] = old
                    self._drop_finished()
                else:
                    gone = self._drop(old) + self._drop_finishing(made.name)
                self._policies[made.name] = made
            _deliver(gone)
            sha256: str = answer["sha256"]
            return sha256

    # --- the engine's thread ---

    def _run(self) -> None:
        try:
            self._keep_alive()
        finally:
            # Callers wait for this thread; it must not end silently.
            with self._lock:
                if not self._closing and self._broken is None:
                    self._broken = InternalServiceError(
                        "the vLLM engine is in an unexpected state", hint=f"see {SERVICE_LOG}"
                    )
                self._rouse()
                left, self._open = list(self._open.values()), {}
                self._busy.count(0)
                for policy in (*self._policies.values(), *self._finishing.values()):
                    policy.take_back()
            self._ready.set()
            error = self._broken or _closing()
            _deliver([(entry, error) for entry in left])
            shutil.rmtree(self._folder, ignore_errors=True)

    def _keep_alive(self) -> None:
        """Restart vLLM whenever it ends, unless that is pointless."""
        failed = 0
        while not self._closing and self._broken is None:
            if not self._awake.is_set():
                self._resting.set()
                self._awake.wait()
                continue
            self._resting.clear()
            reason = ""
            try:
                scratch = private_folder()
                try:
                    ready = self._live(scratch)
                finally:
                    shutil.rmtree(scratch, ignore_errors=True)
            except OSError as error:  # no memory for a process, or its log cannot be written
                _log.exception("the vLLM process cannot be started")
                ready, reason = False, str(error)
            if ready:
                failed = 0
            elif not self._closing:
                failed += 1
                if self._lives == 0 or failed >= _FAILED_STARTS:
                    self._broken = self._not_started(reason)

    def _live(self, scratch: Path) -> bool:
        """Run vLLM, whose processes put their files into `scratch`, until it ends.

        Returns:
            Whether it ever became ready.
        """
        # Of two threads that process images on a CPU, one mostly waits for the other (0.32.0).
        threads = self._threads if self._images is None else 1
        environment = process_environment(scratch, str(self._device), threads)
        with self._lock:
            if self._closing:
                return False
            process = VllmProcess(self._host, log=self._log_file, environment=environment)
            self._process = process
            known = [policy.message() for policy in (*self._policies.values(), *self._finishing.values())]
            self._told += 1
        process.send({"settings": self._arguments, "policies": known})
        ready, naps = False, self._naps
        try:
            ready = self._await_ready(process, known)
            if ready:
                self._serve(process)
        except Exception:
            _log.exception("a message from the vLLM process cannot be handled")
        finally:
            with self._lock:
                if self._lives:
                    self._ready.clear()
            process.end()
            with self._lock:
                self._process = None
                doomed, self._doomed = self._doomed, {}
            for policy in doomed.values():
                policy.take_back()
        if not self._closing and self._naps == naps:
            _log.error("vLLM died or hung; restarting it (its output: %s)", self._log_file)
            if ready:
                self._forget_the_reason()
        return ready

    def _await_ready(self, process: VllmProcess, known: list[Message]) -> bool:
        deadline = time.monotonic() + self._settings.start_seconds
        while not self._closing and (left := deadline - time.monotonic()) > 0:
            messages = process.receive(min(left, 1.0))
            if messages is None:
                return False
            if any("ready" in message for message in messages):
                with self._lock:
                    # Policies may have been retired in the meantime, but none can have been published.
                    kept = {policy.key for policy in self._policies.values()} | self._finishing.keys()
                    for key in {message["policy"] for message in known} - kept:
                        process.send({"do": "drop", "id": 0, "policy": key})
                    self._lives += 1
                    self._ready.set()
                    for number, entry in self._open.items():
                        if self._is_sent(number, entry):
                            process.send(entry.message)
                return True
        return False

    def _forget_the_reason(self) -> None:
        """Fail requests that were in progress each time vLLM died."""
        with self._lock:
            for number, entry in self._open.items():
                entry.tries += self._is_sent(number, entry)
            reasons = {number: entry for number, entry in self._open.items() if entry.tries >= _TRIES}
            for number in reasons:
                del self._open[number]
            self._left(reasons)
            self._drop_finished()
        error = InternalServiceError(
            f"vLLM died {_TRIES} times while processing this request", hint=_SEE_THE_LOG
        )
        _deliver([(entry, error) for entry in reasons.values()])

    def _serve(self, process: VllmProcess) -> None:
        # Messages from the host alone do not show that vLLM works.
        alive = looked = time.monotonic()
        canary_sent: float | None = None
        while not self._closing:
            messages = process.receive(_LOOK_SECONDS)
            now = time.monotonic()
            if messages is None:
                return
            if now - looked >= _LOOK_SECONDS:
                self._drop_unwanted()
                looked = now
            if not self._take(messages):
                return
            if any(map(_is_from_vllm, messages)):
                alive, canary_sent = now, None
            elif canary_sent is not None and now - canary_sent > self._settings.canary_deadline_seconds:
                _log.error("vLLM has not answered its canary request for %.0f s", now - canary_sent)
                return
            elif canary_sent is None and now - alive > self._settings.canary_seconds:
                process.send({"do": "canary", "id": 0})
                canary_sent = now

    def _drop_unwanted(self) -> None:
        """Abort requests whose sender is gone."""
        with self._lock:
            unwanted = {number: entry for number, entry in self._open.items() if entry.unwanted}
            if not unwanted:
                return
            self._abort(unwanted)
            self._drop_finished()
        _deliver([(entry, sender_gone(entry.request)) for entry in unwanted.values()])

    def _take(self, messages: list[Message]) -> bool:
        answers: dict[Deliver, list[Completion | SampleFailure]] = {}
        well = True
        try:
            for message in messages:
                well = self._take_one(message, answers) and well
        finally:
            # Even if a later message cannot be parsed: these have left `_open`.
            for deliver, some in answers.items():
                _call(deliver, some)
        return well

    def _take_one(self, message: Message, answers: dict[Deliver, list[Completion | SampleFailure]]) -> bool:
        """Handle a message, adding its result to `answers`; return whether vLLM is healthy."""
        if "dropped" in message:
            with self._lock:
                policy = self._doomed.pop(message["dropped"], None)
            if policy is not None:
                policy.take_back()
            return True
        number = message["id"]
        entry, answer = self._open.get(number), None
        if entry is not None and entry.request is not None:
            # Before the request leaves `_open`: if parsing fails, the next process gets it again.
            answer = self._completion(entry.request, message)
            self._reused_tokens += message.get("reused", 0)
        with self._lock:
            entry = self._open.pop(number, None)
            self._left([number])
            if self._finishing:
                self._drop_finished()
        if entry is None:
            if number == 0 and "error" in message:
                _log.error("vLLM's canary request failed: %s", message["error"])
                return False
        elif answer is None or entry.deliver is None:
            entry.result.set_result(message)
        else:
            answers.setdefault(entry.deliver, []).append(answer)
        return True

    def _completion(self, request: SampleRequest, answer: Message) -> Completion | SampleFailure:
        if "refused" in answer:
            return failure(request, answer["refused"])
        if "gone" in answer:
            return failure(request, version_gone(request))
        if "invalid" in answer:
            return failure(request, structure_unusable(request, answer["invalid"]))
        if "error" in answer:
            return failure(request, InternalServiceError(f"vLLM failed: {answer['error']}"))
        logprobs, of_prompt = answer["logprobs"], answer.get("prompt_logprobs")
        if not all(-1e30 < logprob <= 1e-3 for logprob in (*logprobs, *(of_prompt or [])[1:])):
            return failure(
                request,
                InternalServiceError(
                    f"policy {request.policy!r} at version {request.policy_version} does not produce "
                    f"finite logits",
                    hint="the policy diverged; lower the learning rate and resume from a checkpoint",
                ),
            )
        return Completion(
            request_id=request.request_id,
            token_ids=answer["tokens"],
            sampling_logprobs=logprobs,
            finish_reason="stop" if answer["reason"] == "stop" else "length",
            policy_version=request.policy_version or 0,
            text=answer.get("text"),
            top_logprobs=answer.get("top_logprobs"),
            prompt_logprobs=of_prompt,
        )

    def _not_started(self, said: str) -> TinkerGymError:
        """Return the error for a vLLM with this message, or else with the end of its log."""
        with contextlib.suppress(OSError):
            said = said or reason_in(self._log_file.read_text(encoding="utf-8", errors="replace"))
        return InvalidRequestError(
            f"vLLM does not start with the model {str(self._facts.directory)!r}: "
            f"{said or 'it printed no error'}",
            hint=f"{_SEE_THE_LOG}; docs/operating/engines.md lists what engine=transformers supports",
            field="engine",
        )


def _refuse_device_weights(settings: VllmSettings, device: torch.device) -> None:
    if settings.full_weights == "device" and device.type == "cpu":
        raise InvalidRequestError(
            "vllm.full_weights=device needs a GPU, but vLLM runs on the CPU",
            hint="leave vllm.full_weights out",
            field="vllm.full_weights",
        )


def _owner(request: SampleRequest) -> str:
    return request.seat.owner or f"/{request.policy}"


def _is_from_vllm(message: Message) -> bool:
    return not message.keys().isdisjoint({"tokens", "answers", "alive"})


def _deliver(failures: Sequence[tuple[_Open, TinkerGymError]]) -> None:
    for entry, error in failures:
        if entry.request is None or entry.deliver is None:
            entry.result.set_result({"refused": error})
        else:
            _call(entry.deliver, [failure(entry.request, error)])


def _call(deliver: Deliver, answers: Sequence[Completion | SampleFailure]) -> None:
    try:
        deliver(answers)
    except Exception:
        _log.exception("a callback for %d completions failed; the engine continues", len(answers))


def _structure(request: SampleRequest) -> Message | None:
    if request.structured is None:
        return None
    if isinstance(request.structured, Regex):
        return {"regex": request.structured.pattern}
    return {"json": request.structured.json_schema}


def _closing() -> ServiceUnavailableError:
    return ServiceUnavailableError("the engine is closing", hint="repeat the request in a moment")
