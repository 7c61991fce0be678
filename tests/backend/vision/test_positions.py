"""Positions of tokens in sequences with images, however the sequence is cut."""

import numpy as np
import pytest

from backend.vision.positions import mrope_positions
from tinkergym.trajectory.content_parts import ImageSpan

GRIDS = {"a": (2, 3), "b": (4, 1), "c": (1, 2)}
IMAGES = [
    ImageSpan(sha256=name * 64, start=start, end=start + rows * columns)
    for (name, (rows, columns)), start in zip(GRIDS.items(), (2, 8, 15), strict=True)
]
"""The second follows the first immediately."""
TOKENS = 20


def grid_of(sha256):
    return GRIDS[sha256[0]]


def by_definition():
    """Text counts on in all three; an image has one time, and its rows and columns from there."""
    found, place, following = [], 0, 0
    for image in [*IMAGES, None]:
        until = TOKENS if image is None else image.start
        for _ in range(place, until):
            found.append((following,) * 3)
            following += 1
        if image is not None:
            rows, columns = grid_of(image.sha256)
            found += [(following, following + r, following + c) for r in range(rows) for c in range(columns)]
            following, place = following + max(rows, columns), image.end
    return np.array(found).T


def test_matches_positions_of_the_definition():
    assert mrope_positions(0, TOKENS, IMAGES, grid_of).tolist() == by_definition().tolist()


@pytest.mark.parametrize("start", range(TOKENS))
def test_gives_chunk_the_positions_of_the_whole(start):
    whole = by_definition()
    for end in range(start + 1, TOKENS + 1):
        found = mrope_positions(start, end, IMAGES, grid_of)
        assert found.tolist() == whole[:, start:end].tolist(), end


def test_counts_text_from_its_place_without_images():
    assert mrope_positions(3, 6, [], grid_of).tolist() == [[3, 4, 5]] * 3
