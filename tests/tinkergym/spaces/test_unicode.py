import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkergym.spaces.unicode import UnicodeCharacters, from_indices, to_indices

ALL = UnicodeCharacters()


@given(st.text())
def test_restores_text_from_places_of_its_characters(text):
    assert from_indices(to_indices(text)) == text
    assert [ALL.index(char) for char in text] == to_indices(text).tolist()


@pytest.mark.parametrize("place", [0, 0xD7FF, 0xD800, len(ALL) - 1])
def test_leaves_surrogates_out_of_places(place):
    assert ALL.index(ALL[place]) == place
    assert ALL[place] in ALL


@pytest.mark.parametrize("stranger", ["", "ab", "\ud800", 7])
def test_excludes_what_is_no_character(stranger):
    assert stranger not in ALL


@pytest.mark.parametrize("place", [-1, len(ALL)])
def test_rejects_place_that_does_not_exist(place):
    with pytest.raises(ValueError, match="no Unicode character"):
        from_indices(np.array([place]))
