"""The interface that every engine implements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from tinkergym.agent.sampler import Deliver, deliver_parts, has_gone
from tinkergym.schema.sampling import Completion, CompletionPart, SampleFailure, SampleRequest

if TYPE_CHECKING:  # torch
    from backend.compute.weights import PolicyWeights

BASE_POLICY = ""
"""The policy id of the model without an adapter; its only version is 0."""


class PassedOn:
    """Passes on to a caller what an engine delivers; implements `Deliver` with a `__call__` of a subclass."""

    def __init__(self, deliver: Deliver) -> None:
        """Pass on to `deliver`."""
        self._deliver = deliver

    @property
    def gone(self) -> bool:
        """See `Deliver`."""
        return has_gone(self._deliver)

    def parts(self, parts: Sequence[CompletionPart]) -> None:
        """See `Deliver`."""
        deliver_parts(self._deliver, parts)


class SamplingEngine(Protocol):
    """Samples tokens from one base model under many policies.

    All methods are thread-safe. In `SampleRequest`s for an engine, `policy` is a published policy id (or
    `BASE_POLICY`). The version is fixed when a request is submitted: without `policy_version` the newest. One
    version samples the whole completion, using keys and values that it computed, and the completion names it.
    `session_id` may be `owner/session`: no cache, including that of equal prompts, is shared between owners.
    """

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and completion together."""
        ...

    @property
    def busy_seconds(self) -> float:
        """Seconds spent computing since the start; grows monotonically."""
        ...

    def submit(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        """Queue requests; each is answered exactly once through `deliver`, possibly several at a time.

        The tokens of those with `stream` may also be delivered before, see `Deliver`. They are the same.
        """
        ...

    def generate_together(self, requests: Sequence[SampleRequest]) -> list[Completion | SampleFailure]:
        """Sample these requests as one separate batch in this order, with a fresh cache.

        The result depends only on the requests and the weights, bitwise.
        """
        ...

    def submit_together(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        """Like `generate_together`, but return at once; `deliver` is called once, with all answers in order.

        One batch of a tenant is sampled at a time.
        """
        ...

    def publish(self, policy: str, version: int, weights: PolicyWeights, *, let_finish: bool = False) -> str:
        """Make `policy@version` available and drop the policy's older versions with their caches.

        Unanswered requests for an older version fail with PolicyVersionGoneError; with `let_finish` that
        version finishes them, and its weights stay until then. New requests for it are refused in both cases.

        Returns:
            The SHA-256 of the received weights, see `weights_sha256`, for the publisher to compare.
        """
        ...

    def retire(self, policy: str) -> None:
        """Remove a policy, its weights and its caches."""
        ...

    def loaded(self) -> dict[str, int]:
        """Published policies and their newest versions."""
        ...

    @property
    def asleep(self) -> bool:
        """Whether `sleep` freed memory and there was no request since."""
        ...

    def sleep(self) -> bool:
        """Free memory for a learner on the same device; policies stay published.

        The next request wakes the engine, so callers need not know that it sleeps.

        Returns:
            Whether it sleeps now. An engine with unanswered requests does not sleep.
        """
        ...

    def wake(self) -> None:
        """Start to allocate the memory again before the next request."""
        ...

    def close(self) -> None:
        """Stop; queued requests fail with ServiceUnavailableError."""
        ...
