"""Spaces, their values and their schemas as JSON: `documents`, `reading`, `values` and `schema` together."""

import sys

import numpy as np
import pytest
from hypothesis import given

from tests.tinkergym.spaces.strategies import any_spaces, through_json
from tinkergym.errors import MissingExtraError
from tinkergym.spaces import (
    Image,
    from_json,
    space_from_json,
    space_to_json,
    to_json,
)


@given(any_spaces)
def test_restores_equal_space_of_the_same_types(space):
    document = through_json(space_to_json(space))
    back = space_from_json(document)
    assert type(back) is type(space)
    assert back == space
    assert space_to_json(back) == document


def test_names_the_extra_for_picture_in_json_without_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    space, picture = Image(1, 1), np.zeros((1, 1, 3), np.uint8)
    with pytest.raises(MissingExtraError):
        to_json(space, picture)
    with pytest.raises(MissingExtraError):
        from_json(space, "aGVsbG8=")
