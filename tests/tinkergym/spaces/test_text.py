import copy
import json
import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Discrete
from gymnasium.spaces.utils import flatten, flatten_space, unflatten
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

from tinkergym import TextEnv
from tinkergym.spaces import Text
from tinkergym.spaces.text import choose


class Echo(TextEnv):
    def start(self, options):
        return "say something, 世界"

    def reply(self, action):
        return action, 0.0, False


@given(st.text())
def test_contains_any_unicode_text(text):
    assert text in Text()


@pytest.mark.parametrize("thing", ["\ud800", "a\udfffb", b"bytes", 3, None, ["a"]])
def test_excludes_lone_surrogates_and_what_is_no_text(thing):
    assert thing not in Text()


@pytest.mark.parametrize(("text", "inside"), [("", False), ("a", True), ("abc", True), ("abcd", False)])
def test_includes_both_lengths(text, inside):
    assert (text in Text(3, min_length=1)) is inside


@pytest.mark.parametrize("lengths", [(-1, 5), (3, 2)])
def test_rejects_impossible_lengths(lengths):
    with pytest.raises(ValueError, match="min_length"):
        Text(lengths[1], min_length=lengths[0])


def test_draws_short_contained_json_samples_repeatable_by_seed():
    space, again = Text(seed=3), Text(seed=3)
    samples = [space.sample() for _ in range(200)]
    assert samples == [again.sample() for _ in range(200)]
    assert all(sample in space and len(sample) <= 32 for sample in samples)
    assert json.loads(json.dumps(samples)) == samples
    assert any(not sample.isascii() for sample in samples)


def test_respects_lengths_beyond_the_usual_ones_in_samples():
    assert len(Text(50, min_length=40, seed=0).sample()) == 40
    assert len(Text(seed=0).sample(mask=(7, None))) == 7


@pytest.mark.parametrize(
    "legal", [["a1", "b2", "c3"], ("a1", "b2", "c3"), ["only one, with spaces and 世界"]]
)
def test_samples_legal_texts_each_as_likely(legal):
    space = Text(seed=0)
    samples = [space.sample(mask=legal) for _ in range(300)]
    assert set(samples) == set(legal)
    assert min(samples.count(text) for text in legal) > 300 / len(legal) / 2


def test_draws_sample_from_texts_with_weights():
    space = Text(seed=0)
    samples = [space.sample(probability={"often": 9, "seldom": 1.0, "never": 0}) for _ in range(300)]
    assert set(samples) == {"often", "seldom"}
    assert samples.count("often") > 200


def test_samples_inside_others_from_its_own_texts():
    space = gym.spaces.Dict(move=Text(seed=0), board=gym.spaces.Tuple([Text()]))
    sample = space.sample(mask={"move": ["a1"], "board": (["b2"],)})
    assert sample == {"move": "a1", "board": ("b2",)}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"mask": (3, [1, 0])}, r"gymnasium\.spaces\.Text"),
        ({"probability": (3, [0.5, 0.5])}, r"gymnasium\.spaces\.Text"),
        ({"mask": (9, None)}, "length 9"),
        ({"mask": (-1, None)}, "length -1"),
        ({"mask": []}, "at least one"),
        ({"mask": ["ok", "too long for it"]}, "too long for it"),
        ({"mask": ["ok", 3]}, "not in"),
        ({"mask": "abc"}, "mask="),
        ({"mask": ["a"], "probability": {"a": 1}}, "pass either mask or probability"),
        ({"probability": {"a": 0}}, "weights"),
        ({"probability": {"a": -1, "b": 2}}, "weights"),
        ({"probability": {"a": float("nan")}}, "weights"),
        ({"probability": ["a"]}, "mask="),
    ],
)
def test_rejects_masks_that_mean_nothing_here(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        Text(5).sample(**arguments)


def test_compares_spaces_by_lengths_and_unlike_gymnasiums():
    assert Text(5) == Text(5)
    assert Text(5) != Text(6)
    assert Text(5) != Text(5, min_length=1)
    assert Text(62) != gym.spaces.Text(62, min_length=0)


def test_survives_pickling_and_copying_with_its_generator():
    space = Text(100, seed=1)
    copies = [pickle.loads(pickle.dumps(space)), copy.deepcopy(space)]
    assert copies == [space, space]
    expected = space.sample()
    assert [other.sample() for other in copies] == [expected, expected]


@given(st.text(max_size=20))
def test_undoes_flattening_by_unflattening(text):
    space = Text(20)
    flat = flatten(space, text)
    assert flat in flatten_space(space)
    assert unflatten(space, flat) == text


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.uint8, np.int64])
@given(text=st.text(max_size=9))
def test_flattens_text_beside_numbers_reversibly_too(dtype, text):
    space = gym.spaces.Dict(text=Text(9), number=gym.spaces.Box(0, 9, (2,), dtype))
    value = {"text": text, "number": np.array([3, 4], dtype)}
    flat = flatten(space, value)
    assert flat in flatten_space(space)
    assert data_equivalence(unflatten(space, flat), value, exact=True)


def test_flattens_and_unflattens_only_texts_of_the_space():
    with pytest.raises(ValueError, match="not in"):
        flatten(Text(3), "four")
    with pytest.raises(ValueError, match="no Unicode character"):
        unflatten(Text(3), np.array([-1, 0, 0]))


def test_flattens_longest_fitting_text_in_a_moment():
    space = Text()
    text = "ß😀" * 500_000
    assert unflatten(space, flatten(space, text)) == text


def test_carries_text_in_sync_vector_environments():
    vector = SyncVectorEnv([Echo, Echo])
    observations, _ = vector.reset(seed=0)
    assert observations == ("say something, 世界",) * 2
    assert vector.step(["Grüße", "hi"])[0] == ("Grüße", "hi")
    vector.close()


def test_rejects_shared_memory_and_says_what_to_do():
    with pytest.raises(TypeError, match="shared_memory=False"):
        AsyncVectorEnv([Echo])


def test_carries_text_in_asynchronous_vectors_without_shared_memory():
    vector = AsyncVectorEnv([Echo], shared_memory=False)
    try:
        assert vector.reset(seed=0)[0] == ("say something, 世界",)
        assert vector.step(["longer than before, 世界世界"])[0] == ("longer than before, 世界世界",)
        assert vector.step(["short"])[0] == ("short",)
    finally:
        vector.close()


def test_draws_value_by_spaces_own_generator_and_its_weight():
    space = Discrete(5, seed=3)
    drawn = [choose(space, [1, 4]) for _ in range(20)]
    assert set(drawn) == {1, 4}
    space.seed(3)
    assert [choose(space, [1, 4]) for _ in range(20)] == drawn
    assert {choose(space, [1, 4], [0.0, 2.0]) for _ in range(5)} == {4}


@pytest.mark.parametrize(
    ("values", "weights"),
    [([], None), (None, None), ([7], None), ([1, 2], [0, 0]), ([1, 2], [-1, 2]), ([1], [float("inf")])],
)
def test_rejects_what_cannot_be_drawn_from(values, weights):
    with pytest.raises(ValueError, check=lambda error: error.args):
        choose(Discrete(5), values, weights)
