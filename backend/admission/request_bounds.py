"""Limits of single requests: images in a prompt, logprobs in a batch."""

from __future__ import annotations

from collections.abc import Iterable

from tinkergym.errors import InvalidRequestError
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
        InvalidRequestError: Those besides the sampled tokens' own exceed `MOST_EXTRA_LOGPROBS`.
    """
    wanted = sum([request.extra_logprobs for request in requests])
    if wanted > MOST_EXTRA_LOGPROBS:
        raise InvalidRequestError(
            f"these requests ask for up to {wanted:,} logprobs besides those of the sampled tokens, more "
            f"than the limit of {MOST_EXTRA_LOGPROBS:,} per call",
            hint="lower top_logprobs, top_prompt_logprobs or max_tokens, or use several calls",
            field="requests.top_logprobs",
        )
