"""An engine without a model: a function produces the tokens, for tests and dry runs."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from backend.compute.weights import PolicyWeights, weights_sha256
from backend.engines.failures import (
    deliver_to,
    engine_closing,
    failure,
    images_refused,
    stops_refused,
    structure_refused,
)
from backend.engines.protocol import BASE_POLICY
from tinkergym.agent.sampler import Deliver
from tinkergym.agent.stop_strings import stopped_text, stops_of
from tinkergym.errors import (
    InternalServiceError,
    InvalidRequestError,
    PolicyVersionGoneError,
    PromptTooLongError,
    TinkerGymError,
)
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest

_log = logging.getLogger(__name__)

Script = Callable[[SampleRequest], Sequence[int]]
"""Returns the ids of the completion; an exception becomes the request's failure."""

_Taken = tuple[SampleRequest, int | None]
"""A request, and the version that answers it, if loaded."""


class ScriptedEngine:
    """A `SamplingEngine` whose tokens come from a script.

    Limits, stop ids, versions and delivery from an engine thread are those of a real engine; only the weights
    of a published policy are ignored.
    """

    def __init__(
        self,
        script: Script,
        *,
        context_length: int = 1024,
        logprob: float = -1.0,
        model_directory: Path | None = None,
    ) -> None:
        """Start the engine.

        Args:
            script: Called in the engine's thread, one request at a time.
            context_length: Most tokens of prompt and completion together.
            logprob: The reported logprob of every token in nats, including prompt tokens.
            model_directory: The model whose tokenizer is used for stop strings; None refuses them.
        """
        self._script = script
        self._context_length = context_length
        self._logprob, self._model_directory = logprob, model_directory
        self._versions: dict[str, int] = {}
        self._oldest: dict[str, int] = {}
        """For each policy, the oldest version with which requests can be finished."""
        self._busy_seconds = 0.0
        self._closed = self._asleep = False
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[list[_Taken], Deliver] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="scripted-engine", daemon=True)
        self._thread.start()

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and completion together."""
        return self._context_length

    @property
    def busy_seconds(self) -> float:
        """Seconds spent in the script."""
        return self._busy_seconds

    def submit(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        """Queue requests; they are answered together."""
        with self._lock:
            self._asleep = False
            if not self._closed:
                self._queue.put((self._take(requests), deliver))
                return
        deliver([failure(request, engine_closing()) for request in requests])

    def generate_together(self, requests: Sequence[SampleRequest]) -> list[Completion | SampleFailure]:
        """Answer requests in order."""
        with self._lock:
            self._asleep = False
            taken = self._take(requests)
        return [self._answer(*each) for each in taken]

    def submit_together(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        """Deliver the answers in order."""
        deliver(self.generate_together(requests))

    def publish(self, policy: str, version: int, weights: PolicyWeights, *, let_finish: bool = False) -> str:
        """Replace a policy's version by `policy@version`; return the weights' SHA-256."""
        with self._lock:
            if not let_finish or policy not in self._versions:
                self._oldest[policy] = version
            self._versions[policy] = version
        return weights_sha256(weights)

    def retire(self, policy: str) -> None:
        """Remove a policy."""
        with self._lock:
            self._versions.pop(policy, None)
            self._oldest.pop(policy, None)

    def loaded(self) -> dict[str, int]:
        """Published policies and their newest versions."""
        with self._lock:
            return dict(self._versions)

    @property
    def asleep(self) -> bool:
        """Whether `sleep` was called and there was no request since."""
        return self._asleep

    def sleep(self) -> bool:
        """Sleep; there is no memory to free."""
        self._asleep = True
        return True

    def wake(self) -> None:
        """Wake up."""
        self._asleep = False

    def close(self) -> None:
        """Stop; queued requests fail with ServiceUnavailableError."""
        with self._lock:
            self._closed = True
            self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            taken, deliver = item
            deliver_to(deliver, [self._answer(*each) for each in taken])

    def _take(self, requests: Sequence[SampleRequest]) -> list[_Taken]:
        """Determine which version answers each request; needs the lock."""
        taken: list[_Taken] = []
        for asked in requests:
            version = 0 if asked.policy == BASE_POLICY else self._versions.get(asked.policy)
            settled = {} if asked.policy_version is not None else {"policy_version": version}
            request = asked.model_copy(update=settled)
            taken.append((request, version if request.policy_version == version else None))
        return taken

    def _answer(self, request: SampleRequest, version: int | None) -> Completion | SampleFailure:
        refused = engine_closing() if self._closed else self._refusal(request)
        if refused is not None:
            return failure(request, refused)
        oldest = 0 if request.policy == BASE_POLICY else self._oldest.get(request.policy)
        if version is None or oldest is None or version < oldest:
            return failure(
                request,
                PolicyVersionGoneError(
                    f"policy {request.policy!r} at version {request.policy_version} is not loaded"
                ),
            )
        room = min(request.max_tokens, self._context_length - len(request.prompt_ids))
        if room < 1:
            return failure(request, PromptTooLongError("the prompt leaves no room for a completion"))
        begin = time.perf_counter()
        try:
            scripted = list(self._script(request))
        except TinkerGymError as error:
            return failure(request, error)
        except Exception as error:
            return failure(
                request, InternalServiceError(f"the script raised {type(error).__name__}: {error}")
            )
        finally:
            self._busy_seconds += time.perf_counter() - begin
        return self._completion(request, scripted[:room], version)

    def _completion(self, request: SampleRequest, ids: list[int], version: int) -> Completion:
        stops = stops_of(request, self._model_directory)
        end = None
        for place, token in enumerate(ids):
            if token in request.stop_ids or (stops is not None and stops.completed_by(token)):
                end = place + 1
                break
        ids = ids[:end]
        behind = request.prompt_ids[1:]
        return Completion(
            request_id=request.request_id,
            token_ids=ids,
            sampling_logprobs=[self._logprob] * len(ids),
            finish_reason="length" if end is None else "stop",
            policy_version=version,
            text=None if stops is None else stopped_text(stops, ids, request.stop_ids),
            # A script does not report tokens that it did not choose.
            top_logprobs=[[(token, self._logprob)] for token in ids] if request.top_logprobs else None,
            prompt_logprobs=[None, *[self._logprob] * len(behind)] if request.prompt_logprobs else None,
            prompt_ranks=[None, *[1] * len(behind)] if request.prompt_logprobs else None,
            top_prompt_logprobs=[None, *[[(token, self._logprob)] for token in behind]]
            if request.top_prompt_logprobs
            else None,
        )

    def _refusal(self, request: SampleRequest) -> TinkerGymError | None:
        if request.is_cut:
            return InvalidRequestError(
                "engine=scripted has no most likely tokens, because a script chooses them",
                hint="leave out top_p and top_k, or use a service with engine=transformers or vllm",
                field="top_p" if request.top_p < 1 else "top_k",
            )
        return (
            images_refused(request)
            or stops_refused(request, self._model_directory)
            or structure_refused(request, "scripted")
        )
