"""Sampling over HTTP: requests are sent in batches, and completions arrive as JSON lines.

Knows batches, threads and retries. Does not look inside prompts or completions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from tinkergym.agent.sampler import Deliver, deliver_parts
from tinkergym.errors import ServiceUnavailableError, TinkerGymError, TooManyRequestsError
from tinkergym.network.backoff import Backoff
from tinkergym.remote.image_upload import ImageUpload
from tinkergym.remote.transport import Connection, lines_of_chunks
from tinkergym.schema.events import ErrorView
from tinkergym.schema.sampling import (
    BEYOND_RATE,
    MOST_EXTRA_LOGPROBS,
    Completion,
    CompletionPart,
    SampleBatch,
    SampleFailure,
    SampleRequest,
    read_answer,
)

Answer = Completion | SampleFailure

MOST_PER_BATCH = 4096
"""The most requests that `SampleBatch` allows."""
MOST_IDS_PER_BATCH = 250_000
"""Prompt ids per batch; as JSON they stay well below a gateway's body limit. A single request may be
longer."""
EAGER_STREAMS = 2
"""Up to this many streams, a submission is sent in its own stream at once; beyond, it waits for more
requests."""
LINGER_SECONDS = 0.002
"""This waiting time, per open stream, up to `MOST_LINGER_SECONDS`. It must be bounded: in lockstep the
service answers only when all requests have arrived."""
MOST_LINGER_SECONDS = 0.05
GATHER_SECONDS = 0.004
"""Without a new request for this long, expected ones are no longer waited for."""
SILENCE_SECONDS = 600.0
"""A stream may be silent while the service waits for an engine or for the rest of a lockstep batch."""
FULL_PAUSE_SECONDS = 1.0
"""Pause between tries while the key has as many requests in flight as the service allows."""

RETRIED = frozenset({"ServiceUnavailableError", "ServiceUnreachableError"})


class HttpSampler:
    """Implements `tinkergym.agent.sampler.Sampler` on `POST /v1/sample` and its internal sibling.

    Requests that arrive while others wait are merged into one POST. If a response is lost with its
    connection, its requests are sent again, and so are, once, images that the service has deleted meanwhile.
    """

    def __init__(
        self,
        connection: Connection,
        path: str,
        *,
        images: ImageUpload | None = None,
        patience_seconds: float = 60.0,
        full_pause_seconds: float = FULL_PAUSE_SECONDS,
    ) -> None:
        """Sample through `path` of `connection`, which the caller closes.

        Args:
            connection: The connection to the gateway or the pool.
            path: The route that takes a `SampleBatch` and streams JSON lines.
            images: Sends the images of prompts; None uses the gateway's route.
            patience_seconds: How long requests are retried while the service is away, before they fail.
            full_pause_seconds: How long to wait while the service takes no more.
        """
        self._connection, self._path = connection, path
        self._images = ImageUpload(connection, "/v1/images") if images is None else images
        self._patience_seconds, self._full_pause_seconds = patience_seconds, full_pause_seconds
        self._changed = threading.Condition()
        self._waiting: list[tuple[SampleRequest, Deliver]] = []
        self._idle = 0
        self._open = 0
        self._stop = threading.Event()
        self._expected: Callable[[], int] = int

    def expect(self, soon: Callable[[], int]) -> None:
        """Wait, for milliseconds, while more requests are likely to be submitted soon: one batch is cheaper.

        Args:
            soon: Returns how many.
        """
        self._expected = soon

    def submit(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        """Queue requests; each is answered exactly once through `deliver`, from a background thread."""
        with self._changed:
            if self._stop.is_set():
                raise ServiceUnavailableError("the sampler was closed")
            self._waiting.extend((request, deliver) for request in requests)
            self._somebody_takes_it()

    def close(self) -> None:
        """Stop. Unanswered requests get a ServiceUnavailableError."""
        with self._changed:
            self._stop.set()
            left, self._waiting = self._waiting, []
            self._changed.notify_all()
        _fail(left, ServiceUnavailableError("the sampler was closed"))

    def _post_batches(self) -> None:
        """Post waiting requests in a loop. A thread counts as idle from its start until it takes a batch."""
        while True:
            batch = self._take()
            if not batch:
                return
            try:
                self._answer(batch)
            finally:
                with self._changed:
                    self._open -= 1
                    self._idle += 1

    def _take(self) -> list[tuple[SampleRequest, Deliver]]:
        with self._changed:
            while not self._waiting and not self._stop.is_set():
                self._changed.wait()
            self._gather()
            if self._open >= EAGER_STREAMS:
                self._stop_or_linger(min(LINGER_SECONDS * self._open, MOST_LINGER_SECONDS))
            count = _how_many_fit(request for request, _ in self._waiting)
            batch, self._waiting = self._waiting[:count], self._waiting[count:]
            self._idle -= 1
            if batch:
                self._open += 1
            # What did not fit into this batch is for another thread.
            self._somebody_takes_it()
            return batch

    def _somebody_takes_it(self) -> None:
        """Wake or start a thread for waiting requests. Called with the lock held."""
        if not self._waiting:
            return
        if self._idle == 0:
            self._idle += 1
            threading.Thread(target=self._post_batches, name="tinkergym-sampler", daemon=True).start()
        self._changed.notify()

    def _gather(self) -> None:
        """Wait until no more requests are expected, or none comes."""
        known, until = 0, time.monotonic() + MOST_LINGER_SECONDS
        while len(self._waiting) > known and self._expected() and time.monotonic() < until:
            known = len(self._waiting)
            self._changed.wait(GATHER_SECONDS)

    def _stop_or_linger(self, seconds: float) -> None:
        # Without the lock, so that requests can join, and on `_stop`, because each of them notifies
        # `_changed`.
        self._changed.release()
        try:
            self._stop.wait(seconds)
        finally:
            self._changed.acquire()

    def _answer(self, batch: list[tuple[SampleRequest, Deliver]]) -> None:
        """Retry until every request of the batch is answered or the patience is used up."""
        pending = {request.request_id: (request, deliver) for request, deliver in batch}
        waits = Backoff(patience_seconds=self._patience_seconds, sleep=self._stop.wait).waits()
        error: TinkerGymError = ServiceUnavailableError("the service's response ended early")
        sent_again: set[str] = set()
        while pending and not self._stop.is_set():
            try:
                self._stream(pending, sent_again)
            except TooManyRequestsError as caught:
                # The service responds and is busy with earlier requests of this key, which may take any time.
                error = caught
                self._stop.wait(self._full_pause_seconds)
                continue
            except ServiceUnavailableError as caught:
                error = caught
            except TinkerGymError as caught:
                # Together they want more tokens than the key can owe at once; in parts they get them.
                if caught.code == BEYOND_RATE and len(pending) > 1:
                    left = list(pending.values())
                    for half in (left[: len(left) // 2], left[len(left) // 2 :]):
                        self._answer(half)
                    return
                error = caught
                break
            # The edge of a thread: whatever failed, the episodes must be notified.
            except Exception as caught:
                error = TinkerGymError(f"sampling failed in the client: {type(caught).__name__}: {caught}")
                break
            if pending and next(waits, None) is None:
                break
        if self._stop.is_set():
            error = ServiceUnavailableError("the sampler was closed")
        _fail(list(pending.values()), error)

    def _stream(self, pending: dict[str, tuple[SampleRequest, Deliver]], sent_again: set[str]) -> None:
        """Post what is pending and deliver responses as they arrive; answered requests leave `pending`.

        `sent_again` has the requests whose images are sent a second time.
        """
        self._send_images(pending)
        if not pending:
            return
        # Its requests were checked when they were made.
        body = SampleBatch.model_construct(requests=[request for request, _ in pending.values()])
        with self._connection.stream(
            "POST",
            self._path,
            body=body.model_dump_json().encode(),
            timeout_seconds=SILENCE_SECONDS,
        ) as chunks:
            for lines in lines_of_chunks(chunks):
                # Lines that arrived together are delivered together.
                self._deliver(_whole(lines, pending), pending, sent_again)
                if self._stop.is_set():
                    return

    def _send_images(self, pending: dict[str, tuple[SampleRequest, Deliver]]) -> None:
        """Send the images of prompts. If one cannot be sent, only the requests that show it fail."""
        refused: dict[str, TinkerGymError] = {}
        shown = [image.sha256 for request, _ in pending.values() for image in request.images]
        self._images.send(shown, refused=refused)
        for request_id, waiting in list(pending.items()) if refused else []:
            error = next((refused[one.sha256] for one in waiting[0].images if one.sha256 in refused), None)
            if error is not None:
                del pending[request_id]
                _fail([waiting], error)

    def _deliver(
        self, answers: list[Answer], pending: dict[str, tuple[SampleRequest, Deliver]], sent_again: set[str]
    ) -> None:
        by_target: dict[Deliver, list[Answer]] = {}
        for answer in answers:
            waiting = pending.get(answer.request_id)
            if waiting is None:
                continue
            if isinstance(answer, SampleFailure):
                if answer.error.type in RETRIED:
                    continue  # It stays pending and is requested again.
                if _lacks_images(answer) and answer.request_id not in sent_again:
                    sent_again.add(answer.request_id)
                    self._images.forget(image.sha256 for image in waiting[0].images)
                    continue
            del pending[answer.request_id]
            by_target.setdefault(waiting[1], []).append(answer)
        for deliver, group in by_target.items():
            deliver(group)


def _whole(lines: Iterable[bytes], pending: Mapping[str, tuple[SampleRequest, Deliver]]) -> list[Answer]:
    """Return the answers in lines; deliver what they have of unfinished ones."""
    found: list[Answer] = []
    for line in lines:
        if CompletionPart.is_in(line):
            part = CompletionPart.model_validate_json(line)
            if part.request_id in pending:
                deliver_parts(pending[part.request_id][1], [part])
        elif line.strip():
            found.append(read_answer(line))
    return found


def _how_many_fit(requests: Iterable[SampleRequest]) -> int:
    ids = logprobs = 0
    for count, request in enumerate(requests):
        ids += len(request.prompt_ids)
        logprobs += request.extra_logprobs
        too_long = ids > MOST_IDS_PER_BATCH or logprobs > MOST_EXTRA_LOGPROBS
        if count == MOST_PER_BATCH or (count and too_long):
            return count
    return MOST_PER_BATCH


def _lacks_images(failure: SampleFailure) -> bool:
    return failure.error.type == "NotFoundError" and failure.error.field == "images"


def _fail(left: list[tuple[SampleRequest, Deliver]], error: TinkerGymError) -> None:
    view = ErrorView(**error.to_wire())
    for request, deliver in left:
        deliver([SampleFailure(request_id=request.request_id, error=view)])
