"""Limits on what a batch of sampling requests may ask for."""

from __future__ import annotations

from collections.abc import Iterable

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.sampling import MOST_EXTRA_LOGPROBS, SampleRequest


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
