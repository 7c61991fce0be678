"""The limit on images in one prompt: a rule for requests, first prompts, datasets and calls of own loops."""

from __future__ import annotations

from tinkergym.errors import InvalidRequestError


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
