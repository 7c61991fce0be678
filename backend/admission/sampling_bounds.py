"""How much a batch of requests for tokens may ask for."""

from __future__ import annotations

from collections.abc import Iterable

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.sampling import MOST_EXTRA_LOGPROBS, SampleRequest


def refuse_too_many_logprobs(requests: Iterable[SampleRequest]) -> None:
    """Check that the answers stay of a size that every part of the service can hold.

    Raises:
        InvalidRequestError: `top_logprobs` and `prompt_logprobs` make more than `MOST_EXTRA_LOGPROBS`.
    """
    wanted = sum([request.extra_logprobs for request in requests])
    if wanted > MOST_EXTRA_LOGPROBS:
        raise InvalidRequestError(
            f"these requests want up to {wanted:,} logprobs besides those of the sampled tokens; "
            f"one call gives {MOST_EXTRA_LOGPROBS:,}",
            hint="lower top_logprobs or max_tokens, or ask in several calls",
            field="requests.top_logprobs",
        )
