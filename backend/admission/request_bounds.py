"""Limits of single requests: images in a prompt, logprobs in a batch, requests of a tenant in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tinkergym.errors import InvalidRequestError, TooManyRequestsError
from tinkergym.schema.sampling import MOST_EXTRA_LOGPROBS, SampleRequest


def refuse_many_images(images: int, most: int, *, field: str) -> None:
    """Check the number of images in one prompt or sequence.

    Args:
        images: How many it has.
        most: The setting `limits.prompt_images`.
        field: The field that contains it.

    Raises:
        InvalidRequestError: There are more.
    """
    if images > most:
        raise InvalidRequestError(
            f"a prompt has {images} images, more than the limit of {most}",
            hint="show fewer, or ask the operator to raise limits.prompt_images",
            field=field,
        )


def refuse_too_many_logprobs(requests: Iterable[SampleRequest]) -> None:
    """Check that the responses have a size that every part of the service can handle.

    Raises:
        InvalidRequestError: `top_logprobs` and `prompt_logprobs` exceed `MOST_EXTRA_LOGPROBS`.
    """
    wanted = sum([request.extra_logprobs for request in requests])
    if wanted > MOST_EXTRA_LOGPROBS:
        raise InvalidRequestError(
            f"these requests ask for up to {wanted:,} logprobs besides those of the sampled tokens, more "
            f"than the limit of {MOST_EXTRA_LOGPROBS:,} per call",
            hint="lower top_logprobs or max_tokens, or use several calls",
            field="requests.top_logprobs",
        )


@dataclass(slots=True)
class Batch:
    """Requests of one tenant that arrived together."""

    tenant_id: str
    left: int
    """Number of unanswered requests."""
    by_tenant: Counter[str]

    def answered(self, count: int) -> None:
        """Count finished requests."""
        count = min(count, self.left)
        self.left -= count
        self.by_tenant[self.tenant_id] -= count
        if not self.by_tenant[self.tenant_id]:
            del self.by_tenant[self.tenant_id]


class InFlight:
    """Requests in flight, by tenant. Belongs to one event loop."""

    def __init__(self, most: int) -> None:
        """Allow every tenant `most`, or one batch of any size if it has nothing else in flight."""
        self._most = most
        self._by_tenant: Counter[str] = Counter()

    @contextmanager
    def entered(self, tenant_id: str, count: int) -> Iterator[Batch]:
        """Count a batch in; unanswered requests are counted out at the end.

        Raises:
            TooManyRequestsError: The tenant has too many already.
        """
        held = self._by_tenant[tenant_id]
        if held and held + count > self._most:
            raise TooManyRequestsError(
                f"{held} of your sampling requests are in flight, and the service allows {self._most} at a "
                f"time",
                hint="send more when some have finished; the operator can raise limits.samples_in_flight",
            )
        self._by_tenant[tenant_id] += count
        batch = Batch(tenant_id, count, self._by_tenant)
        try:
            yield batch
        finally:
            batch.answered(batch.left)
