"""The vLLM engine: samples with vLLM in a separate process, whose death loses no requests.

This side tracks every policy (`published_policies.py`) and unanswered request (`open_requests.py`); the
process (`host.py`) only knows what it was told (`exchange.py`). When it dies or hangs, it is killed with its
children and restarted (`kept_process.py`): it receives every policy again, passes a canary request, and then
receives the unanswered requests. vLLM itself is only imported in that process.
"""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import torch

from backend.catalog.models import ModelFacts, read_model_facts
from backend.compute.weights import PolicyWeights, weights_sha256
from backend.engines.failures import failure, version_gone
from backend.engines.vllm.exchange import Exchange, fail_all
from backend.engines.vllm.files import as_in_files, model_shapes
from backend.engines.vllm.folder import private_folder
from backend.engines.vllm.image_files import handed_images
from backend.engines.vllm.kept_process import KeptProcess
from backend.engines.vllm.open_requests import OpenRequest, OpenRequests, owner
from backend.engines.vllm.process import HOST, Message, VllmProcess
from backend.engines.vllm.published_policies import PolicyVersion, PublishedPolicies
from backend.engines.vllm.request_messages import RequestMessages, batch_completions
from backend.engines.vllm.settings import engine_arguments, process_environment, sleep_mode
from backend.engines.vllm.weight_handover import WeightHandover, not_loaded, refuse_device_weights
from backend.settings.served_models import DType, VllmSettings, require_vllm
from backend.vision.pixels import ImageSource
from backend.vision.shared_caches import SharedImages
from tinkergym.agent.sampler import Deliver
from tinkergym.errors import StorageFullError, TinkerGymError
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class VllmEngine:
    """A `SamplingEngine` over vLLM; see `protocol.py` for the contract."""

    def __init__(
        self,
        model_directory: Path,
        *,
        devices: Sequence[str] = ("cpu",),
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
            devices: `cpu`, `cuda`, `cuda:1`, ... Several divide the model between them (tensor parallel).
            threads: OpenMP threads of vLLM on a CPU, divided between its devices.
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
        settings = settings or VllmSettings()
        place, device = torch.device(devices[0]), devices[0]
        refuse_device_weights(settings, place, ranks=len(devices))
        self._facts: ModelFacts = read_model_facts(model_directory)
        self._shapes = model_shapes(model_directory)
        self._folder = private_folder(self._facts.parameters * 4)
        self._handover = WeightHandover(self._facts, settings, place, self._folder, self._shapes)
        seen = handed_images(self._facts, images, self._folder / "images")
        self._messages = RequestMessages(self._facts, seen)
        self._sleep_mode = sleep_mode(settings, device)
        self._lock = threading.Lock()
        log_file = log or self._folder / "vllm.log"
        # Of two threads that process images on a CPU, one mostly waits for the other (0.32.0).
        threads = max(1, threads // len(devices)) if seen is None else 1
        length = self._facts.context_length
        self._process = KeptProcess(
            lambda scratch: VllmProcess(
                host, log=log_file, environment=process_environment(scratch, devices, threads)
            ),
            lock=self._lock,
            settings=settings,
            model=self._facts.directory,
            arguments=engine_arguments(
                settings,
                model_directory,
                length,
                device,
                dtype,
                shapes=self._shapes,
                sees=bool(seen),
                ranks=len(devices),
            ),
            log_file=log_file,
        )
        self._requests, self._policies = OpenRequests(settings.max_sequences), PublishedPolicies(self._folder)
        self._exchange = Exchange(self._process, self._requests, self._policies, self._lock)
        self._process.run_for(self._exchange)

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and completion together."""
        return self._facts.context_length

    @property
    def busy_seconds(self) -> float:
        """Seconds in which at least one request was in progress."""
        return self._requests.busy_seconds

    @property
    def reused_tokens(self) -> int:
        """Prompt tokens found in the cache."""
        return self._exchange.reused_tokens

    @property
    def restarts(self) -> int:
        """How often vLLM was restarted because it had died or hung."""
        return self._process.restarts

    @property
    def host_pid(self) -> int | None:
        """The process that runs vLLM, if any; vLLM's engine core is its child."""
        return self._process.pid

    def submit(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        """Queue requests; each is answered exactly once through `deliver`."""
        refused: list[Completion | SampleFailure] = []
        self._messages.read_images(requests)
        with self._lock:
            for asked in requests:
                # Under the lock of `publish`: the version that is chosen stays the newest until the
                # request is among the open ones.
                request = self._policies.settled(asked)
                message = self._message(request)
                if isinstance(message, TinkerGymError):
                    refused.append(failure(request, message))
                else:
                    self._exchange.ask(OpenRequest({"do": "sample", **message}, request, deliver))
            if self._messages.images is not None:
                # Under the same lock: between its message and its place among the open requests, an image
                # would seem unused.
                self._messages.images.tidy(self._requests.image_hashes)
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
        refused: dict[int, SampleFailure] = {}
        messages: dict[int, Message] = {}
        self._messages.read_images(requests)
        with self._lock:
            requests = [self._policies.settled(request) for request in requests]
            # A new salt acts as a fresh cache.
            salt = f"together {self._requests.next_number()}"
            for place, request in enumerate(requests):
                message = self._message(request)
                if isinstance(message, TinkerGymError):
                    refused[place] = failure(request, message)
                else:
                    number = self._requests.next_number()
                    # vLLM needs an id for each request, but only the batch as a whole is an open message.
                    messages[place] = message | {"id": number, "salt": f"{salt} {message['salt']}"}
            asked = {"do": "together", "requests": list(messages.values())}
            entry = OpenRequest(asked, deliver=deliver, batch_of=owner(requests[0]) if requests else "")
            if messages:
                self._exchange.ask(entry)

        def finish(found: Message) -> None:
            deliver(batch_completions(requests, messages, refused, found, dropped=entry.dropped))

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
        self._handover.require_loadable(policy, stored)
        made = self._policies.make(policy, version)
        try:
            self._handover.hand_over(made, stored)
            arrived = self._load(made, let_finish=let_finish)
        except BaseException as error:
            made.take_back()
            if (closed := self._process.error) is not None:
                shutil.rmtree(self._folder, ignore_errors=True)  # perhaps created just now
                if isinstance(error, OSError):
                    raise closed from error
            if isinstance(error, OSError) and error.errno in _NO_SPACE:
                raise StorageFullError(
                    f"no space left for the weights of policy {policy!r} under {self._folder}",
                    hint="free some space; weights are kept in memory if /dev/shm is large enough",
                ) from error
            raise
        # The caller compares with its own names. If the renamed tensors arrived intact, so did these.
        same = stored is not weights and arrived == weights_sha256(stored)
        return weights_sha256(weights) if same else arrived

    def retire(self, policy: str) -> None:
        """Remove a policy, its weights and its caches."""
        with self._lock:
            gone = self._exchange.retire(policy)
        fail_all(gone)

    def loaded(self) -> dict[str, int]:
        """Published policies and their newest versions."""
        with self._lock:
            return self._policies.newest_versions()

    @property
    def asleep(self) -> bool:
        """Whether `sleep` freed memory and there was no request since."""
        return self._process.asleep

    def sleep(self) -> bool:
        """Free memory as set by `vllm.sleep`; False while requests are in progress."""
        entry = OpenRequest({"do": "sleep"})
        with self._lock:
            if self._process.asleep:
                return True
            if self._requests or not self._process.takes_messages:
                return False
            if self._sleep_mode == "offload":
                self._exchange.ask(entry)
            else:
                self._process.end_to_sleep()
        if self._sleep_mode == "end":
            self._process.wait_until_resting()
            return self._process.asleep
        answer = entry.result.result()
        with self._lock:
            # A request in the meantime has woken it.
            latest = self._requests.newest == entry.message["id"]
            self._process.asleep = latest and not answer.keys() & {"error", "refused"}
            return self._process.asleep

    def wake(self) -> None:
        """Start to wake vLLM, without waiting."""
        with self._lock:
            if self._process.asleep and self._sleep_mode == "offload":
                self._exchange.ask(OpenRequest({"do": "wake"}))
            else:
                self._process.wake()

    def close(self) -> None:
        """Stop; unanswered requests fail with ServiceUnavailableError."""
        self._process.close()

    def _message(self, request: SampleRequest) -> Message | TinkerGymError:
        """Return the message for a settled request, or why there is none; needs the lock."""
        key = self._policies.key_of(request)
        if key is None:
            return version_gone(request)
        return self._messages.refusal(request) or self._messages.message(request, key)

    def _load(self, made: PolicyVersion, *, let_finish: bool) -> str:
        """Let the process load a version and make it the newest; return the SHA-256 of what it has read."""
        while True:
            entry = OpenRequest({"do": "load", **made.message()})
            with self._lock:
                # Read before the message is sent: a restart from here on is noticed below.
                generation = self._process.generation
                self._exchange.ask(entry)
            answer = entry.result.result()
            if "refused" in answer:
                raise answer["refused"]
            if "error" in answer:
                raise not_loaded(made, answer["error"])
            with self._lock:
                if generation != self._process.generation:
                    # vLLM was restarted in the meantime. The new process was told of the published versions
                    # only, and the process that answered may be the old one: load it again.
                    continue
                gone = self._exchange.publish(made, let_finish=let_finish)
            fail_all(gone)
            sha256: str = answer["sha256"]
            return sha256
