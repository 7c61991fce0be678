"""A service that stores the calls of one policy, for tests of what a script sends."""

from __future__ import annotations

import json
import threading

from tinkergym.errors import NotFoundError
from tinkergym.remote.api import Api
from tinkergym.schema.events import JobState
from tinkergym.schema.policy_calls import CallResult, CallView, NumberedCall, PolicyCallsView
from tinkergym.schema.sampling import SampleBatch

POLICY_ID = "job-1"


class StubConnection:
    """Answers the routes of calls. By default each call is done when it arrives."""

    def __init__(self) -> None:
        self.stored = []
        """Operations of the stored calls, in order."""
        self.sampled = []
        """Requests for completions."""
        self.refuse = {}
        """Errors of the next POST with an operation."""
        self.state, self.reason = JobState.RUNNING, ""
        self.done = threading.Event()
        """Whether calls have results."""
        self.done.set()
        self.asked = threading.Event()
        """Set when a result was asked for that is not there."""

    def call(self, method, path, *, body=None, **_):
        if path == "/v1/sample":
            batch = SampleBatch.model_validate_json(body)
            self.sampled += batch.requests
            return b"\n".join(_completion(request) for request in batch.requests)
        if method == "POST":
            return self._store(NumberedCall.model_validate_json(body))
        number = path.rpartition("/")[2]
        if number == "calls":
            return PolicyCallsView(policy_id=POLICY_ID, last_seq=len(self.stored)).model_dump_json()
        ready = self.done.wait(0.01)
        if not ready:
            self.asked.set()
        result = CallResult(version=int(number), policy=f"{POLICY_ID}@{number}") if ready else None
        view = CallView(seq=int(number), done=ready, result=result, state=self.state, reason=self.reason)
        return view.model_dump_json()

    def _store(self, wanted):
        error = self.refuse.pop(wanted.call.op, None)
        if error is not None:
            raise error
        assert wanted.seq == len(self.stored) + 1
        self.stored.append(wanted.call)
        return json.dumps({}).encode()


def _completion(request):
    found = {"token_ids": [1], "sampling_logprobs": [0.0], "finish_reason": "stop"}
    if request.prompt_entropies:
        found["prompt_entropies"] = [None, 0.5]
    version = request.policy_version or 0
    return json.dumps({**found, "request_id": request.request_id, "policy_version": version}).encode()


class StubApi(Api):
    """Cancels a policy, and knows which versions are stored."""

    def __init__(self) -> None:
        super().__init__(StubConnection())
        self.found = {}

    @property
    def service(self) -> StubConnection:
        return self.connection

    def cancel(self, job_id):
        self.service.state, self.service.reason = JobState.CANCELLED, "cancelled by its owner"

    def find_policy(self, reference):
        if reference not in self.found:
            raise NotFoundError(f"there is no {reference}")
        return self.found[reference]
