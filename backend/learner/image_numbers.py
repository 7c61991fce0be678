"""Image tokens in a training batch get unique ids, so that only equal images count as equal beginnings.

The placeholder's id is the same for every image, so two prompts that differ only in their image would share
all of their nodes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tinkergym.trajectory.content_parts import ImageSpan

IntArray = npt.NDArray[np.int64]

_FIRST = 1 << 31
"""Above every vocabulary, and within 32 bits for sorting."""


class ImageNumbers:
    """The concatenated images of a training batch: each of their tokens has a number."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._hashes: list[str] = []
        self._known: dict[tuple[str, int], int] = {}
        self._total = 0

    def put_into(self, ids: IntArray, images: Sequence[ImageSpan]) -> None:
        """Replace the placeholders by the images' numbers."""
        for image in images:
            tokens = image.end - image.start
            key = image.sha256, tokens
            if key not in self._known:
                self._known[key] = self._total
                self._starts.append(self._total)
                self._hashes.append(image.sha256)
                self._total += tokens
            begin = _FIRST + self._known[key]
            ids[image.start : image.end] = np.arange(begin, begin + tokens)

    def taken_out_of(self, ids: IntArray) -> tuple[tuple[tuple[str, int], ...], IntArray, IntArray]:
        """Return the images in a micro-batch's ids, their places and each token's index; ids become 0."""
        nodes = np.flatnonzero(ids >= _FIRST)
        if not len(nodes):
            return (), nodes, nodes
        parts = ids[nodes] - _FIRST
        present = sorted({bisect_right(self._starts, part) - 1 for part in parts.tolist()})
        ends = [*self._starts[1:], self._total]
        images = []
        rows = np.zeros(len(parts), dtype=np.int64)
        begin = 0
        for number in present:
            start, end = self._starts[number], ends[number]
            own = (parts >= start) & (parts < end)
            rows[own] = parts[own] - start + begin
            images.append((self._hashes[number], end - start))
            begin += end - start
        # Any valid id, as these nodes' embeddings are replaced by the images'.
        ids[nodes] = 0
        return tuple(images), nodes, rows
