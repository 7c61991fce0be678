"""Three-dimensional positions, for models whose rotary embedding encodes a token's place in an image.

Computed like in transformers for the Qwen-VL family: a text token has the same position in all three
dimensions (time, height, width); the tokens of an image share one time and add their row and column; the
following text continues after the larger of the image's sides. numpy only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from tinkergym.trajectory.content_parts import ImageSpan

IntArray = npt.NDArray[np.int64]
Grid = tuple[int, int]
"""Rows and columns of an image's tokens."""


def mrope_positions(
    start: int, end: int, images: Sequence[ImageSpan], grid_of: Callable[[str], Grid]
) -> IntArray:
    """Return [3, end - start], the positions of some tokens of a sequence.

    Args:
        start: The first token.
        end: The end, exclusive.
        images: The images' ranges in the sequence, in order.
        grid_of: Returns an image's grid by its hash; rows times columns is the length of its span.
    """
    found = np.tile(np.arange(start, end, dtype=np.int64), (3, 1))
    shift = 0
    """How much smaller the positions after the images so far are than without them."""
    for image in images:
        if image.start >= end:
            break
        rows, columns = grid_of(image.sha256)
        first = image.start - shift
        shift += image.end - image.start - max(rows, columns)
        low, high = max(image.start, start), min(image.end, end)
        if low < high:
            part = np.arange(low - image.start, high - image.start)
            found[:, low - start : high - start] = np.stack(
                [np.full_like(part, first), first + part // columns, first + part % columns]
            )
        if image.end < end:
            rest = max(image.end, start)
            found[:, rest - start :] = np.arange(rest - shift, end - shift)
    return found
