import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from tinkergym.errors import InvalidEnvironmentError
from tinkergym.wrappers.space_words import how_to_say, read, refuse_unspeakable, say, say_as_json

WHOLE = [
    spaces.Discrete(5),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([3, 4]),
    spaces.MultiDiscrete([[2, 3], [4, 5]]),
    spaces.MultiBinary(4),
    spaces.MultiBinary((2, 3)),
    spaces.Box(-9, 9, (3,), np.int16),
    spaces.Box(0, 255, (), np.uint8),
    spaces.Tuple((spaces.Discrete(4), spaces.MultiBinary(2))),
    spaces.Dict(go=spaces.Discrete(4), bits=spaces.Tuple((spaces.MultiBinary(3), spaces.Discrete(2)))),
]


def said(space, value):
    """A value in the form that actions have."""
    rows = len(space.shape or ()) > 1
    composite = isinstance(space, spaces.Tuple | spaces.Dict) or rows
    return say_as_json(space, value, 3) if composite else say(space, value, 3)


def equal(one, other):
    if isinstance(one, dict):
        return set(one) == set(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return np.array_equal(one, other)


@pytest.mark.parametrize("space", WHOLE, ids=str)
def test_reads_back_what_is_said(space):
    space.seed(0)
    for _ in range(50):
        value = space.sample()
        again = read(space, said(space, value))
        assert equal(again, value)
        assert again in space


@given(
    numbers=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=6),
    decimals=st.integers(0, 9),
)
def test_reads_numbers_back_to_the_declared_precision(numbers, decimals):
    space = spaces.Box(-np.inf, np.inf, (len(numbers),), np.float64)
    value = np.array(numbers)
    again = read(space, say(space, value, decimals))
    assert np.abs(again - value).max() <= 0.5 * 10.0**-decimals + 1e-9


@given(text=st.text(max_size=60) | st.text('0123456789 .-+e,[]{}":\n', max_size=60))
@settings(max_examples=300)
def test_reads_any_text_as_value_of_space_or_none(text):
    for space in WHOLE:
        value = read(space, text)
        assert value is None or value in space


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (spaces.Discrete(5), "5"),
        (spaces.Discrete(5), "-1"),
        (spaces.Discrete(5), "1.0"),
        (spaces.Discrete(5), "true"),
        (spaces.Discrete(5), "٣"),
        (spaces.Discrete(5), "1 2"),
        (spaces.Discrete(5), "9" * 6000),
        (spaces.Box(-1, 1, (2,)), "0.5"),
        (spaces.Box(-1, 1, (2,)), "0.5 1.5"),
        (spaces.Box(-np.inf, np.inf, (1,)), "inf"),
        (spaces.Box(-np.inf, np.inf, (1,)), "nan"),
        (spaces.Box(-np.inf, np.inf, (1,)), "1e999"),
        (spaces.Box(0, 255, (1,), np.uint8), "256"),
        (spaces.Box(0, 255, (1,), np.uint8), "1.5"),
        (spaces.MultiBinary((2, 2)), "[[1, 0], [1]]"),
        (spaces.MultiBinary((2, 2)), '[["1", "0"], ["1", "0"]]'),
        (spaces.Tuple((spaces.Discrete(2),)), "[" * 5000),
        (spaces.Dict(a=spaces.Discrete(2)), '{"a": 1, "b": 1}'),
        (spaces.Dict(a=spaces.Discrete(2)), '{"a": NaN}'),
        (spaces.Discrete(5), "1" * 1_000_000),
    ],
)
def test_reads_nothing_in_what_is_no_value(space, text):
    assert read(space, text) is None


@pytest.mark.parametrize(
    ("space", "value", "words"),
    [
        (spaces.Box(-9, 9, (3,)), np.float32([0.12345, -0.0001, 2]), "0.123 0.000 2.000"),
        (spaces.Box(-np.inf, np.inf, (2,)), np.float32([np.inf, np.nan]), "inf nan"),
        (spaces.Box(0, 9, (2, 2), np.uint8), np.uint8([[1, 2], [3, 4]]), "1 2\n3 4"),
        (spaces.Tuple((spaces.Discrete(32), spaces.MultiBinary(2))), (7, np.int8([0, 1])), "7\n0 1"),
        (
            spaces.Dict(a=spaces.Discrete(3), b=spaces.Tuple((spaces.Discrete(3), spaces.Discrete(3)))),
            {"a": 2, "b": (0, 1)},
            "a: 2\nb: [0, 1]",
        ),
    ],
)
def test_says_values_in_few_words(space, value, words):
    assert say(space, value, 3) == words


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Discrete(3), "one of: 0, 1, 2"),
        (spaces.Discrete(50, start=1), "a whole number from 1 to 50"),
        (spaces.Box(-1, 1, (1,)), "a number, from -1.0 to 1.0"),
        (spaces.Box(-1, 1, (2,)), "2 numbers with spaces between, each from -1.0 to 1.0"),
        (
            spaces.MultiDiscrete([3, 2]),
            "2 whole numbers with spaces between, the 1. from 0 to 2; the 2. from 0 to 1",
        ),
        (spaces.Dict(a=spaces.Discrete(2)), 'JSON: {"a": <one of: 0, 1>}'),
    ],
)
def test_says_how_to_answer_too(space, words):
    assert how_to_say(space, 1) == words


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 255, (210, 160, 3), np.uint8),
        spaces.Tuple((spaces.Discrete(2), spaces.Sequence(spaces.Discrete(2)))),
        spaces.Graph(spaces.Discrete(2), None),
    ],
)
def test_rejects_pictures_and_unknown_spaces(space):
    with pytest.raises(InvalidEnvironmentError) as caught:
        refuse_unspeakable(space, "observation")
    assert caught.value.field == "env"
