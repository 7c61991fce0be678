"""What the service asks of an engine, whichever it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from backend.compute.weights import PolicyWeights
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest

BASE_POLICY = ""
"""The policy id of the model without any adapter; its only version is 0."""

Deliver = Callable[[Sequence[Completion | SampleFailure]], None]
"""Called from the engine's thread with the requests that have just finished; must return quickly.

If it has an attribute `gone` that becomes true, nobody waits for the answers any more, and an engine may stop
working on them.
"""


class SamplingEngine(Protocol):
    """Samples tokens from one base model under many policies.

    All methods are thread-safe. In `SampleRequest`s that reach an engine, `policy` is a published policy id
    (or `BASE_POLICY`). Which version answers is settled when they are submitted: without `policy_version` the
    newest. A request is sampled by one version from its first token to its last, on keys and values that this
    version computed, and its completion says which. Their `session_id` may be `owner/session`: no
    cache, that of equal prompts included, serves two owners.
    """

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and answer together."""
        ...

    @property
    def busy_seconds(self) -> float:
        """Seconds since the start in which the engine computed; grows monotonically."""
        ...

    def submit(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        """Queue requests; each is answered exactly once through `deliver`, singly or several at a time."""
        ...

    def generate_together(self, requests: Sequence[SampleRequest]) -> list[Completion | SampleFailure]:
        """Sample these requests as one batch, alone and in this order, with a fresh cache.

        The result depends on the requests and the weights only, to the bit.
        """
        ...

    def publish(self, policy: str, version: int, weights: PolicyWeights, *, let_finish: bool = False) -> str:
        """Make `policy@version` available and drop the policy's older versions with all their caches.

        Requests in flight for an older version are answered with PolicyVersionGoneError; with `let_finish`
        they are finished by that version, whose weights stay until the last of them is answered. New
        requests for it are refused either way.

        Returns:
            The SHA-256 of the weights as they arrived here, see `weights_sha256`; the publisher compares.
        """
        ...

    def retire(self, policy: str) -> None:
        """Forget a policy, its weights and its caches."""
        ...

    def loaded(self) -> dict[str, int]:
        """Published policies and their newest version."""
        ...

    @property
    def asleep(self) -> bool:
        """Whether `sleep` gave memory back and nothing was asked for since."""
        ...

    def sleep(self) -> bool:
        """Give back what memory can be had again, for a learner on the same device; policies stay published.

        Whatever is asked for next wakes the engine, so nobody needs to know that it sleeps.

        Returns:
            Whether it sleeps now. An engine with unanswered requests does not.
        """
        ...

    def wake(self) -> None:
        """Begin to take the memory again, before somebody asks for something."""
        ...

    def close(self) -> None:
        """Stop; requests still queued are answered with ServiceUnavailableError."""
        ...
