"""Sends a policy's calls in order and resolves their futures. Knows nothing of what the calls do."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from tinkergym.errors import (
    AuthenticationError,
    ConflictError,
    InvalidRequestError,
    JobFailedError,
    NotFoundError,
    PayloadTooLargeError,
    StorageFullError,
    TooManyRequestsError,
    from_wire,
)
from tinkergym.remote.api import Api
from tinkergym.schema.events import JobState
from tinkergym.schema.policy_calls import CallResult, CallView, NumberedCall, PolicyCall, PolicyCallsView

PATIENCE_SECONDS = 300.0
"""How long a call is retried while the service does not respond."""
_WAIT_SECONDS = 20.0
_CALL_SECONDS = 60.0
"""Well above `_WAIT_SECONDS`, for which the service holds an answer back."""
_FULL_PAUSE_SECONDS = 1.0
"""Pause between tries while as many calls wait as the service allows."""
_CALLS_AHEAD = 64
"""The most calls that are sent before their results arrive."""

_REFUSALS = (
    AuthenticationError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    PayloadTooLargeError,
    StorageFullError,
)
"""After these errors the service has certainly not stored the call."""

_Value = TypeVar("_Value")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Call(Generic[_Value]):
    call: PolicyCall
    read: Callable[[CallResult], _Value]
    future: Future[_Value]


class CallQueue:
    """The calls of one policy that this process makes. Thread-safe."""

    def __init__(self, api: Api, policy_id: str, *, full_pause_seconds: float = _FULL_PAUSE_SECONDS) -> None:
        """Continue after the last call that the service has; wait so long while it takes no more."""
        self._full_pause_seconds = full_pause_seconds
        self._connection, self._policy_id = api.connection, policy_id
        self._path = f"/v1/policies/{quote(policy_id, safe='')}/calls"
        known = PolicyCallsView.model_validate_json(self._connection.call("GET", self._path))
        self._seq = known.last_seq
        """Number of the last stored call. Only the sending thread changes it."""
        self._lock = threading.Lock()
        self._room = threading.Semaphore(_CALLS_AHEAD)
        self._to_send: queue.Queue[_Call[Any] | None] = queue.Queue()
        self._to_hear: queue.Queue[tuple[int, _Call[Any]] | None] = queue.Queue()
        self._closed = False
        self._abandoned = threading.Event()
        self._broken: BaseException | None = None
        self._logged_reason = ""
        self._threads = [
            threading.Thread(target=act, name=f"{policy_id}-{name}", daemon=True)
            for name, act in (("send", self._send), ("hear", self._hear))
        ]
        for thread in self._threads:
            thread.start()

    def add(self, call: PolicyCall, read: Callable[[CallResult], _Value]) -> Future[_Value]:
        """Send a call after the earlier ones; `read` takes the future's value from its result.

        Raises:
            ConflictError: The queue was closed.
            TinkerGymError: The outcome of an earlier call is unknown, so the order would be, too.
        """
        # Before the lock, which `close` takes: it must not wait for room.
        self._room.acquire()
        with self._lock:
            if self._closed or self._broken is not None:
                self._room.release()
                raise self._broken or self._closed_error()
            added: _Call[_Value] = _Call(call, read, Future())
            # A call cannot be taken back: without this, `cancel()` would mark the future as cancelled.
            added.future.set_running_or_notify_cancel()
            self._to_send.put(added)
        return added.future

    def close(self, *, wait: bool = True) -> None:
        """Accept no further calls.

        Args:
            wait: Wait for the results of all calls. False returns at once: calls that were not sent yet are
                dropped, and the results of sent ones are fetched no longer.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                self._to_send.put(None)
        if not wait:
            self._abandoned.set()
            return
        for thread in self._threads:
            thread.join()

    def _closed_error(self) -> ConflictError:
        return ConflictError(
            f"{self._policy_id} was closed in this process",
            hint="open it again with client.training_policy(POLICY_ID)",
        )

    def _send(self) -> None:
        while (added := self._to_send.get()) is not None:
            if self._abandoned.is_set():
                self._fail(added, self._closed_error())
            elif self._broken is not None:
                self._fail(added, self._broken)
            else:
                self._post(added)
        # Behind all that was sent: the other thread ends after their results.
        self._to_hear.put(None)

    def _post(self, added: _Call[Any]) -> None:
        seq = self._seq + 1
        try:
            self._store(NumberedCall(seq=seq, call=added.call).model_dump_json().encode())
        except BaseException as error:
            # Calls numbered by another script would be taken for ours. Otherwise the next call gets this
            # number, because a refused one was not stored.
            numbered_elsewhere = isinstance(error, ConflictError) and error.field == "seq"
            if numbered_elsewhere or not isinstance(error, _REFUSALS):
                self._broken = error
            self._fail(added, error)
        else:
            self._seq = seq
            self._to_hear.put((seq, added))

    def _store(self, body: bytes) -> None:
        while True:
            try:
                self._connection.call(
                    "POST",
                    self._path,
                    body=body,
                    timeout_seconds=_CALL_SECONDS,
                    patience_seconds=PATIENCE_SECONDS,
                )
            except TooManyRequestsError:
                # The service responds. Earlier calls may take any time, so patience does not end.
                if self._abandoned.wait(self._full_pause_seconds):
                    raise self._closed_error() from None
            else:
                return

    def _hear(self) -> None:
        while (sent := self._to_hear.get()) is not None:
            seq, added = sent
            try:
                value = added.read(self._result(seq))
            except BaseException as error:
                self._fail(added, error)
            else:
                added.future.set_result(value)
                self._room.release()

    def _fail(self, added: _Call[Any], error: BaseException) -> None:
        added.future.set_exception(error)
        self._room.release()

    def _result(self, seq: int) -> CallResult:
        while not self._abandoned.is_set():
            answer = self._connection.call(
                "GET",
                f"{self._path}/{seq}",
                params={"wait_seconds": str(_WAIT_SECONDS)},
                timeout_seconds=_CALL_SECONDS,
                patience_seconds=PATIENCE_SECONDS,
            )
            view = CallView.model_validate_json(answer)
            if view.result is not None:
                if view.result.error is not None:
                    raise from_wire(view.result.error.model_dump())
                return view.result
            if view.state.final:
                raise JobFailedError(
                    f"{self._policy_id} ended ({view.state}) before call {seq} was done: {view.reason}",
                    hint="create another policy with its last saved version as initial_policy",
                )
            self._log_waiting(view)
        raise self._closed_error()

    def _log_waiting(self, view: CallView) -> None:
        """Log once why a policy that does not run waits; otherwise the script would only seem to hang."""
        if view.state is not JobState.RUNNING and view.reason and view.reason != self._logged_reason:
            self._logged_reason = view.reason
            _log.warning("%s is %s, and its calls wait: %s", self._policy_id, view.state, view.reason)
