"""What the vLLM process is asked, told and answers: a restart loses nothing and answers nothing twice.

The engine's lock is the only one, and is never held while a callback runs: what must be answered is collected
under the lock and answered after it. Methods that return `Failures` leave that to their caller.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Collection

from backend.engines.failures import deliver_to, sender_gone, version_gone
from backend.engines.vllm.kept_process import KeptProcess
from backend.engines.vllm.open_requests import OpenRequest, OpenRequests, call_parts
from backend.engines.vllm.process import SEE_THE_LOG, Message
from backend.engines.vllm.published_policies import PolicyVersion, PublishedPolicies
from backend.engines.vllm.request_messages import completion, completion_part
from tinkergym.agent.sampler import Deliver
from tinkergym.errors import InternalServiceError, TinkerGymError
from tinkergym.schema.sampling import Completion, SampleFailure

_log = logging.getLogger(__name__)
_TRIES = 3
"""A request that was in progress this many times when vLLM died is considered the cause."""

Failures = list[tuple[OpenRequest, TinkerGymError]]


class Exchange:
    """The open requests and published policies of one engine, in step with its process.

    Implements `Conversation`.
    """

    def __init__(
        self,
        process: KeptProcess,
        requests: OpenRequests,
        policies: PublishedPolicies,
        lock: threading.Lock,
    ) -> None:
        self._process, self._requests, self._published = process, requests, policies
        self._lock = lock
        self.reused_tokens = 0
        """Prompt tokens found in the cache."""

    # --- any thread, with the lock ---

    def ask(self, entry: OpenRequest) -> None:
        """Send a message now, or when vLLM is ready again."""
        if (error := self._process.error) is not None:
            # Not while holding the lock: the callback may submit another request.
            threading.Thread(target=entry.fail, args=(error,), daemon=True).start()
            return
        self._process.wake()
        self._requests.add(entry)
        if entry.batch_of is None and entry.request is None:
            self._process.send(entry.message)
        self._send_admitted()

    def publish(self, made: PolicyVersion, *, let_finish: bool) -> Failures:
        """Make a version that the process has loaded the newest."""
        failures = self._drop(self._published.publish(made, let_finish=let_finish))
        self._drop_finished()
        return failures

    def retire(self, name: str) -> Failures:
        """Remove a policy."""
        return self._drop(self._published.remove(name))

    def _send_admitted(self) -> None:
        for entry in self._requests.admitted():
            self._process.send(entry.message)

    def _drop(self, policies: Collection[PolicyVersion]) -> Failures:
        """Let the process drop versions that were removed."""
        failures: Failures = []
        for policy in policies:
            over: dict[int, OpenRequest] = {}
            for number, entry in self._requests.of_policy(policy.key).items():
                entry.dropped.add(policy.key)
                # Requests that are computed together may also use other policies.
                if entry.dropped == entry.samples:
                    over[number] = entry
                    if entry.request is None:
                        entry.result.set_result({"gone": True})
            self._abort(over)
            if self._process.exists:
                # `dropped` or `ended` takes it back: requests may still compute with it.
                self._published.doom(policy)
                self._process.send({"do": "drop", "id": 0, "policy": policy.key})
            else:
                policy.take_back()
            failures += [(entry, version_gone(entry.request)) for entry in over.values() if entry.request]
        return failures

    def _abort(self, numbers: Collection[int]) -> list[OpenRequest]:
        """Stop waiting for these results; the caller answers the requests."""
        self._process.send({"do": "abort", "id": 0, "ids": list(numbers)})
        return self._remove(numbers)

    def _remove(self, numbers: Collection[int]) -> list[OpenRequest]:
        """Close messages; others take their places."""
        gone = self._requests.remove(numbers)
        self._send_admitted()
        return gone

    def _drop_finished(self) -> None:
        """Remove older versions without remaining requests."""
        for policy in self._published.finishing():
            if not self._requests.of_policy(policy.key):
                self._published.finished(policy)
                self._drop([policy])

    # --- the keeper's thread, see `Conversation` ---

    def policies(self) -> list[Message]:
        """See `Conversation`."""
        return [policy.message() for policy in self._published.present()]

    def resume(self, known: list[Message]) -> None:
        """See `Conversation`. Policies may have been retired since, but none can have been published."""
        kept = {policy.key for policy in self._published.present()}
        for key in {message["policy"] for message in known} - kept:
            self._process.send({"do": "drop", "id": 0, "policy": key})
        for entry in self._requests.sent():
            self._process.send(entry.message)

    def take(self, messages: list[Message]) -> bool:
        """See `Conversation`."""
        answers: dict[Deliver, list[Completion | SampleFailure]] = {}
        well = True
        try:
            for message in messages:
                well = self._take_one(message, answers) and well
        finally:
            # Even if a later message cannot be parsed: these are no longer open.
            for deliver, some in answers.items():
                deliver_to(deliver, some)
        return well

    def _take_one(self, message: Message, answers: dict[Deliver, list[Completion | SampleFailure]]) -> bool:
        """Handle a message, adding its result to `answers`; return whether vLLM is healthy."""
        if "dropped" in message:
            with self._lock:
                policy = self._published.unread(message["dropped"])
            if policy is not None:
                policy.take_back()
            return True
        number = message["id"]
        if "part" in message:
            entry = self._requests.get(number)
            if entry is not None and entry.request is not None and entry.deliver is not None:
                call_parts(entry.deliver, [completion_part(entry.request, message["part"])])
            return True
        # Without the lock, as completions take time to check. Whether it is still open then, `_remove`
        # decides: another thread may have answered it because its policy was retired.
        entry, answer = self._requests.get(number), None
        if entry is not None and entry.request is not None:
            # Before the request is closed: if parsing fails, the next process gets it again.
            answer = completion(entry.request, message)
            self.reused_tokens += message.get("reused", 0)
        with self._lock:
            closed = self._remove([number])
            self._drop_finished()
        if not closed:
            if number == 0 and "error" in message:
                _log.error("vLLM's canary request failed: %s", message["error"])
                return False
            return True
        (entry,) = closed
        if answer is None or entry.deliver is None:
            entry.result.set_result(message)
        else:
            answers.setdefault(entry.deliver, []).append(answer)
        return True

    def drop_unwanted(self) -> None:
        """See `Conversation`."""
        with self._lock:
            unwanted = self._requests.unwanted()
            if not unwanted:
                return
            closed = self._abort(unwanted)
            self._drop_finished()
        for entry in closed:
            entry.fail(sender_gone(entry.request))

    def ended(self) -> None:
        """See `Conversation`."""
        with self._lock:
            unread = self._published.all_unread()
        for policy in unread:
            policy.take_back()

    def died(self) -> None:
        """See `Conversation`: fail the requests that were in progress each time vLLM died."""
        with self._lock:
            for entry in self._requests.sent():
                entry.tries += 1
            closed = self._remove(self._requests.tried(_TRIES))
            self._drop_finished()
        error = InternalServiceError(
            f"vLLM died {_TRIES} times while processing this request", hint=SEE_THE_LOG
        )
        for entry in closed:
            entry.fail(error)

    def close(self, error: TinkerGymError) -> None:
        """See `Conversation`."""
        with self._lock:
            closed = self._requests.remove_all()
            for policy in self._published.present():
                policy.take_back()
        for entry in closed:
            entry.fail(error)
        shutil.rmtree(self._published.folder, ignore_errors=True)


def fail_all(failures: Failures) -> None:
    """Answer requests with their errors; call this without the lock."""
    for entry, error in failures:
        entry.fail(error)
