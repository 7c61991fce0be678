import copy
import json
import pickle

import gymnasium as gym
import pytest
from gymnasium.spaces.utils import flatten, flatten_space, unflatten
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

from tinkergym import TextEnv
from tinkergym.spaces import Text


class Echo(TextEnv):
    def start(self, options):
        return "say something, 世界"

    def reply(self, action):
        return action, 0.0, False


@given(st.text())
def test_any_unicode_text_is_contained(text):
    assert text in Text()


@pytest.mark.parametrize("thing", ["\ud800", "a\udfffb", b"bytes", 3, None, ["a"]])
def test_lone_surrogates_and_what_is_no_text_are_not_contained(thing):
    assert thing not in Text()


@pytest.mark.parametrize(("text", "inside"), [("", False), ("a", True), ("abc", True), ("abcd", False)])
def test_both_lengths_are_inclusive(text, inside):
    assert (text in Text(3, min_length=1)) is inside


@pytest.mark.parametrize("lengths", [(-1, 5), (3, 2)])
def test_impossible_lengths_are_refused(lengths):
    with pytest.raises(ValueError, match="min_length"):
        Text(lengths[1], min_length=lengths[0])


def test_samples_are_short_contained_json_and_repeat_with_the_seed():
    space, again = Text(seed=3), Text(seed=3)
    samples = [space.sample() for _ in range(200)]
    assert samples == [again.sample() for _ in range(200)]
    assert all(sample in space and len(sample) <= 32 for sample in samples)
    assert json.loads(json.dumps(samples)) == samples
    assert any(not sample.isascii() for sample in samples)


def test_samples_respect_lengths_beyond_the_usual_ones():
    assert len(Text(50, min_length=40, seed=0).sample()) == 40
    assert len(Text(seed=0).sample(mask=(7, None))) == 7


def test_masking_single_characters_is_refused():
    with pytest.raises(ValueError, match=r"gymnasium\.spaces\.Text"):
        Text().sample(mask=(3, [1, 0]))


def test_spaces_are_equal_by_their_lengths_and_differ_from_gymnasiums():
    assert Text(5) == Text(5)
    assert Text(5) != Text(6)
    assert Text(5) != Text(5, min_length=1)
    assert Text(62) != gym.spaces.Text(62, min_length=0)


def test_a_space_survives_pickling_and_copying_with_its_generator():
    space = Text(100, seed=1)
    copies = [pickle.loads(pickle.dumps(space)), copy.deepcopy(space)]
    assert copies == [space, space]
    expected = space.sample()
    assert [other.sample() for other in copies] == [expected, expected]


@given(st.text(max_size=20))
def test_flattening_is_undone_by_unflattening(text):
    space = Text(20)
    flat = flatten(space, text)
    assert flat in flatten_space(space)
    assert unflatten(space, flat) == text


def test_sync_vector_environments_carry_text():
    vector = SyncVectorEnv([Echo, Echo])
    observations, _ = vector.reset(seed=0)
    assert observations == ("say something, 世界",) * 2
    assert vector.step(["Grüße", "hi"])[0] == ("Grüße", "hi")
    vector.close()


def test_shared_memory_is_refused_and_the_error_says_what_to_do():
    with pytest.raises(TypeError, match="shared_memory=False"):
        AsyncVectorEnv([Echo])


def test_without_shared_memory_asynchronous_vectors_carry_text():
    vector = AsyncVectorEnv([Echo], shared_memory=False)
    try:
        assert vector.reset(seed=0)[0] == ("say something, 世界",)
        assert vector.step(["longer than before, 世界世界"])[0] == ("longer than before, 世界世界",)
        assert vector.step(["short"])[0] == ("short",)
    finally:
        vector.close()
