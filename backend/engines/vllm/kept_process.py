"""Keeps one vLLM process running: starts, watches and restarts it, and ends it while the engine sleeps.

Invariants, under the engine's lock: there is at most one process; `ready` is set exactly while it takes
messages (and at the end, for a caller that waits for the start). `generation` grows with every process,
before that is told of the policies: unless it changed since a message was sent, no process has missed it.
A process that ended in order to sleep did not die, which `_naps` tells apart.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from backend.engines.vllm.folder import private_folder
from backend.engines.vllm.process import Message, VllmProcess, not_started
from backend.errors import SERVICE_LOG
from backend.settings.served_models import VllmSettings
from tinkergym.errors import InternalServiceError, ServiceUnavailableError, TinkerGymError

_log = logging.getLogger(__name__)
_FAILED_STARTS = 3
_LOOK_SECONDS = 1.0
"""How often to look for requests whose sender is gone."""


class Conversation(Protocol):
    """What is said to the process and what it answers; called in the keeper's thread."""

    def policies(self) -> list[Message]:
        """Return what a new process must know; called with the lock."""
        ...

    def resume(self, known: list[Message]) -> None:
        """Send what the process has missed since it was told `known`; called with the lock."""
        ...

    def take(self, messages: list[Message]) -> bool:
        """Handle what the process says; return whether vLLM is healthy."""
        ...

    def drop_unwanted(self) -> None:
        """Abort requests whose sender is gone."""
        ...

    def ended(self) -> None:
        """Free what the process had; it is gone."""
        ...

    def died(self) -> None:
        """Give up the requests that kill every process."""
        ...

    def close(self, error: TinkerGymError) -> None:
        """Answer everything open with an error: there will be no other process."""
        ...


class KeptProcess:
    """The process that runs vLLM, over restarts. Methods need the lock unless they say otherwise."""

    def __init__(
        self,
        launch: Callable[[Path], VllmProcess],
        *,
        lock: threading.Lock,
        settings: VllmSettings,
        model: Path,
        arguments: Message,
        log_file: Path,
    ) -> None:
        """Prepare without starting.

        Args:
            launch: Starts a process, whose files go into a folder that is removed afterwards.
            lock: The engine's.
            settings: The operator's settings.
            model: The model's directory.
            arguments: The settings that vLLM is started with.
            log_file: Where the processes write their output.
        """
        self._launch, self._lock, self._settings = launch, lock, settings
        self._model, self._arguments, self._log_file = model, arguments, log_file
        self._process: VllmProcess | None = None
        self.ready = threading.Event()
        self.generation = 0
        """How many processes have received the policies."""
        self._lives = 0
        """How often vLLM has become ready."""
        self._naps = 0
        """How often it was ended in order to sleep."""
        self.asleep = False
        self._awake = threading.Event()
        self._awake.set()
        self._resting = threading.Event()
        """Set while there is no process, because it sleeps."""
        self._closing = False
        self._broken: TinkerGymError | None = None

    def run_for(self, conversation: Conversation) -> None:
        """Start, and wait until vLLM has answered a canary request. Needs no lock.

        Raises:
            InvalidRequestError: vLLM cannot run the model.
        """
        self._conversation = conversation
        self._thread = threading.Thread(target=self._run, name="vllm-engine", daemon=True)
        self._thread.start()
        self.ready.wait()
        if self._broken is not None:
            self.close()
            raise self._broken

    @property
    def error(self) -> TinkerGymError | None:
        """Why no request is accepted any more; None as long as they are."""
        if self._closing and self._broken is None:
            return ServiceUnavailableError("the engine is closing", hint="repeat the request in a moment")
        return self._broken

    @property
    def exists(self) -> bool:
        """Whether there is a process, ready or not."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """The process id of the host, if any. Needs no lock."""
        process = self._process
        return process.pid if process else None

    @property
    def restarts(self) -> int:
        """How often vLLM was restarted because it had died or hung. Needs no lock."""
        return max(0, self._lives - 1 - self._naps)

    @property
    def takes_messages(self) -> bool:
        """Whether a message sent now reaches a process that is ready."""
        return self._process is not None and self.ready.is_set() and not self._closing

    def send(self, message: Message) -> None:
        """Send a message if there is a process that is ready."""
        if self._process is not None and self.ready.is_set():
            self._process.send(message)

    def wake(self) -> None:
        """Wake up, without waiting."""
        self.asleep = False
        self._resting.set()  # for a caller that waits until it sleeps
        self._awake.set()

    def end_to_sleep(self) -> None:
        """End the process; `wake` starts another."""
        assert self._process is not None
        self.asleep = True
        self._naps += 1
        self._awake.clear()
        self._resting.clear()
        self._process.hang_up()

    def wait_until_resting(self) -> None:
        """Wait until `end_to_sleep` has freed the process's memory, or it was roused. Needs no lock."""
        self._resting.wait()

    def close(self) -> None:
        """End the process and the thread, which answers what is open. Takes the lock itself."""
        with self._lock:
            self._closing = True
            self.wake()
            process = self._process
        if process is not None:
            process.hang_up()
        # A callback, which runs in that thread, may be what closes the engine.
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # --- the keeper's thread, without the lock ---

    def _run(self) -> None:
        try:
            self._keep_alive()
        finally:
            # Callers wait for this thread; it must not end silently.
            with self._lock:
                if self.error is None:
                    self._broken = InternalServiceError(
                        "the vLLM engine is in an unexpected state", hint=f"see {SERVICE_LOG}"
                    )
                self.wake()
                error = self.error
            self.ready.set()
            assert error is not None
            self._conversation.close(error)

    def _keep_alive(self) -> None:
        """Restart vLLM whenever it ends, unless that is pointless."""
        failed = 0
        while self.error is None:
            if not self._awake.is_set():
                self._resting.set()
                # Then start over: `close` may have woken it.
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
                # A first start fails for a reason that stays, such as the model; a later one may only lack
                # memory for a while.
                if self._lives == 0 or failed >= _FAILED_STARTS:
                    self._broken = not_started(self._model, self._log_file, reason)

    def _live(self, scratch: Path) -> bool:
        """Run vLLM, whose processes put their files into `scratch`, until it ends.

        Returns:
            Whether it ever became ready.
        """
        with self._lock:
            if self._closing:
                return False
            process = self._process = self._launch(scratch)
            known = self._conversation.policies()
            self.generation += 1
        process.send({"settings": self._arguments, "policies": known})
        ready, naps = False, self._naps
        try:
            ready = self._await_ready(process, known)
            # One that never became ready was sent no requests.
            if ready:
                self._serve(process)
        except Exception:
            _log.exception("a message from the vLLM process cannot be handled")
        finally:
            with self._lock:
                self.ready.clear()
            # Without the lock: it waits for the processes.
            process.end()
            with self._lock:
                # Before `ended`, which frees versions removed until now; later ones are freed by whoever
                # removes them.
                self._process = None
            self._conversation.ended()
        if not self._closing and self._naps == naps:
            _log.error("vLLM died or hung; restarting it (its output: %s)", self._log_file)
            if ready:
                self._conversation.died()
        return ready

    def _await_ready(self, process: VllmProcess, known: list[Message]) -> bool:
        deadline = time.monotonic() + self._settings.start_seconds
        while not self._closing and (left := deadline - time.monotonic()) > 0:
            messages = process.receive(min(left, 1.0))
            if messages is None:
                return False
            if any("ready" in message for message in messages):
                with self._lock:
                    self._lives += 1
                    # In one hold of the lock: a message sent between the two would be sent twice.
                    self.ready.set()
                    self._conversation.resume(known)
                return True
        return False

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
                self._conversation.drop_unwanted()
                looked = now
            if not self._conversation.take(messages):
                return
            if any(map(_is_from_vllm, messages)):
                alive, canary_sent = now, None
            elif canary_sent is not None and now - canary_sent > self._settings.canary_deadline_seconds:
                _log.error("vLLM has not answered its canary request for %.0f s", now - canary_sent)
                return
            elif canary_sent is None and now - alive > self._settings.canary_seconds:
                process.send({"do": "canary", "id": 0})
                canary_sent = now


def _is_from_vllm(message: Message) -> bool:
    return not message.keys().isdisjoint({"tokens", "answers", "alive"})
