"""Spaces, their values and their schemas as JSON: `documents`, `reading`, `values` and `schema` together."""

import json
import sys

import gymnasium as gym
import jsonschema
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from hypothesis import given, settings
from hypothesis import strategies as st

from tinkergym.errors import (
    InvalidSpaceError,
    InvalidValueError,
    MissingExtraError,
    TinkerGymError,
    UnsupportedSpaceError,
)
from tinkergym.messages import ROLES
from tinkergym.spaces import (
    Chat,
    Image,
    Text,
    from_json,
    json_schema,
    space_from_json,
    space_to_json,
    to_json,
)

small = st.integers(1, 4)
shapes = st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)
lengths = st.tuples(st.integers(0, 5), st.integers(0, 50)).map(lambda ab: (ab[0], sum(ab)))
integer_types = st.sampled_from(["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
seeds = st.integers(0, 2**31 - 1)


@st.composite
def boxes(draw):
    shape, seed = draw(shapes), draw(seeds)
    rng = np.random.default_rng(seed)
    dtype = np.dtype(draw(st.one_of(integer_types, st.sampled_from(["float16", "float32", "float64"]))))
    low = rng.integers(0, 50, shape) if draw(st.booleans()) else np.full(shape, draw(st.integers(0, 50)))
    high = low + rng.integers(1, 50, shape)
    low, high = low.astype(dtype), high.astype(dtype)
    if dtype.kind == "f" and draw(st.booleans()):
        low, high = low / 3, np.full(shape, np.inf)
    return spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)


@st.composite
def multi_discretes(draw):
    shape, seed = draw(st.lists(small, min_size=1, max_size=2)), draw(seeds)
    rng = np.random.default_rng(seed)
    start = rng.integers(-9, 9, shape)
    return spaces.MultiDiscrete(rng.integers(1, 9, shape), dtype=np.int64, start=start)


simple_spaces = st.one_of(
    lengths.map(lambda ab: Text(ab[1], min_length=ab[0])),
    lengths.map(lambda ab: spaces.Text(ab[1], min_length=ab[0], charset="a-]^\\b😀 ")),
    st.builds(
        lambda count, roles, length: Chat(count[1], min_messages=count[0], roles=roles, max_length=length),
        lengths,
        st.lists(st.sampled_from(ROLES), min_size=1),
        st.integers(0, 99),
    ),
    st.builds(Image, small, small, st.sampled_from([1, 3, 4])),
    st.builds(
        lambda n, start, dtype: spaces.Discrete(n, start=start, dtype=np.dtype(dtype).type),
        st.integers(1, 99),
        st.integers(0, 9),
        integer_types,
    ),
    st.builds(lambda start: spaces.Discrete(5, start=start), st.integers(-(2**62), 2**62)),
    boxes(),
    multi_discretes(),
    st.one_of(small, st.lists(small, min_size=1, max_size=3)).map(spaces.MultiBinary),
)


def nested(*kinds):
    """Spaces of spaces, up to a few leaves; the kinds make one of an inner one."""
    return st.recursive(
        simple_spaces,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
            st.dictionaries(st.text(max_size=5), inner, min_size=1, max_size=3).map(spaces.Dict),
            inner.map(spaces.Sequence),
            *(kind(inner) for kind in kinds),
        ),
        max_leaves=6,
    )


any_spaces = nested(lambda inner: st.lists(inner, min_size=1, max_size=3).map(spaces.OneOf))


def through_json(document):
    """What a peer on the other side of a wire gets; `allow_nan=False` is what standard JSON allows."""
    return json.loads(json.dumps(document, allow_nan=False))


@given(any_spaces)
def test_a_space_comes_back_equal_and_of_the_same_types(space):
    document = through_json(space_to_json(space))
    back = space_from_json(document)
    assert type(back) is type(space)
    assert back == space
    assert space_to_json(back) == document


@given(any_spaces, seeds)
@settings(deadline=None, max_examples=40)
def test_values_come_back_identical_and_fit_the_schema(space, seed):
    space.seed(seed)
    schema = through_json(json_schema(space))
    jsonschema.Draft202012Validator.check_schema(schema)
    for _ in range(3):
        value = space.sample()
        document = through_json(to_json(space, value))
        jsonschema.validate(document, schema)
        assert data_equivalence(from_json(space, document), value, exact=True)


# Gymnasium 1.4 writes a `OneOf` of a `Tuple` or `Dict` so that it cannot read it again.
@given(nested(), seeds)
@settings(deadline=None, max_examples=40)
def test_gymnasiums_own_form_of_many_values_comes_back_identical(space, seed):
    space.seed(seed)
    values = [space.sample() for _ in range(3)]
    # Gymnasium's form writes infinities as Python does, which samples of bounded spaces do not hold.
    back = space.from_jsonable(json.loads(json.dumps(space.to_jsonable(values))))
    assert data_equivalence(list(back), values, exact=True)


@given(any_spaces, st.data())
@settings(deadline=None, max_examples=40)
def test_whatever_a_peer_sends_is_a_value_of_the_space_or_a_typed_error(space, data):
    scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3))
    hostile = st.recursive(
        scalars,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner)),
    )
    document = data.draw(hostile)
    try:
        value = from_json(space, document)
    except TinkerGymError:
        return
    assert value in space


@pytest.mark.parametrize("number", [np.inf, -np.inf, -0.0, 1e-45, np.float32(0.1), 5e-324, 2**53 + 1])
def test_floats_keep_every_bit(number):
    space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    value = np.array([number, 1.0])
    back = from_json(space, through_json(to_json(space, value)))
    assert back.tobytes() == value.tobytes()
    jsonschema.validate(through_json(to_json(space, value)), json_schema(space))


@pytest.mark.parametrize("value", [np.array(7, np.int8), np.int8(7), 7])
def test_a_single_number_of_a_box_comes_back_as_the_array_that_gymnasium_asks_for(value):
    back = from_json(spaces.Box(0, 9, (), np.int8), 7)
    assert (type(back), back.shape, back.dtype, int(back)) == (np.ndarray, (), np.int8, 7)
    assert to_json(spaces.Box(0, 9, (), np.int8), value) == 7


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_arrays_without_elements_keep_their_shape(shape):
    space = spaces.Box(0, 1, shape)
    assert space_from_json(through_json(space_to_json(space))) == space
    document = through_json(to_json(space, space.sample()))
    jsonschema.validate(document, json_schema(space))
    assert from_json(space, document).shape == shape


@pytest.mark.parametrize(
    ("space", "value", "where"),
    [
        (Text(3), "four", "the value"),
        (Text(), "\ud800", "the value"),
        (spaces.Discrete(3), 3, "the value"),
        (spaces.Box(0, 1, (2,)), np.zeros(3, np.float32), "the value"),
        (spaces.Dict(a=spaces.Tuple([Text(), spaces.Discrete(2)])), {"a": ("x", 5)}, r"\['a'\]\[1\]"),
        (spaces.Dict(a=Text(), b=Text()), {"a": "x"}, "keys"),
        (spaces.Tuple([Text()]), ("a", "b"), "tuple of 1"),
        (spaces.Dict(c=Chat()), {"c": [{"role": "user", "content": 3}]}, r"\['c'\]: \[0\]: the content"),
        (Image(2, 2), np.zeros((2, 2, 3), np.int64), "the value"),
        (spaces.Dict(a=spaces.Sequence(Text(1))), {"a": ("x", "xx")}, r"\['a'\]\[1\]"),
        (spaces.Sequence(Text()), "xx", "expected a tuple"),
        (spaces.OneOf([Text(), spaces.Discrete(2)]), (1, 2), r"\[1\]"),
        (spaces.OneOf([Text(), spaces.Discrete(2)]), (2, 1), "from 0 to 1"),
        (spaces.OneOf([Text()]), (True, "x"), "from 0 to 0"),
        (spaces.OneOf([Text()]), "x", "number of a space and a value"),
    ],
)
def test_a_value_outside_its_space_is_refused_and_the_error_says_where(space, value, where):
    with pytest.raises(InvalidValueError, match=where):
        to_json(space, value)


@pytest.mark.parametrize(
    ("space", "document"),
    [
        (Text(), 3),
        (Text(3), "four"),
        (spaces.Discrete(3), True),
        (spaces.Discrete(3), 1.0),
        (spaces.Discrete(3), -1),
        (spaces.Discrete(3, dtype=np.int8), 300),
        (spaces.Box(0, 9, (2,), np.int64), [1.5, 2]),
        (spaces.Box(0, 9, (2,), np.int64), [1, 99]),
        (spaces.Box(0, 9, (2,), np.int64), [[1, 2]]),
        (spaces.Box(0, 9, (2,)), ["1", 2]),
        (spaces.Box(0, 9, (2,)), [[1], [2, 3]]),
        (spaces.MultiBinary(2), [0, 2]),
        (spaces.MultiDiscrete([2, 2]), [1]),
        (spaces.Dict(a=Text()), {"a": "x", "b": "y"}),
        (spaces.Tuple([Text()]), []),
        (spaces.Sequence(spaces.Discrete(2)), [0, 2]),
        (spaces.Sequence(spaces.Discrete(2)), {"0": 1}),
        (spaces.OneOf([Text(), Text()]), [2, "x"]),
        (spaces.OneOf([Text(), Text()]), [-1, "x"]),
        (spaces.OneOf([Text(), Text()]), [1.0, "x"]),
        (spaces.OneOf([Text(), Text()]), [0]),
        (spaces.OneOf([Text(), Text()]), [0, 1]),
        (Chat(), [{"role": "user"}]),
        (Chat(roles=["user"]), [{"role": "tool", "content": "x"}]),
        (Image(1, 1), "not base64!"),
        (Image(1, 1), "aGVsbG8="),
        (Image(1, 1), 0),
    ],
)
def test_a_document_without_a_value_of_the_space_is_refused(space, document):
    with pytest.raises(InvalidValueError):
        from_json(space, document)
    # In a place of its own, the error says which.
    with pytest.raises(InvalidValueError, match=r"^\['here'\]"):
        from_json(spaces.Dict(here=space), {"here": document})


TEXT = {"space": "text", "min_length": 0, "max_length": 5}
BOX = {"space": "box", "dtype": "float32", "shape": [2], "low": 0.0, "high": 1.0}


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (None, "object"),
        ({}, "needs 'space'"),
        ({"space": "graph"}, "there is no space 'graph'"),
        ({"space": "array"}, "there is no space"),
        ({**TEXT, "charset": "abc"}, "has no 'charset'"),
        ({"space": "text", "min_length": 0}, "needs 'max_length'"),
        ({**TEXT, "max_length": "5"}, "'max_length' must be int"),
        ({**TEXT, "max_length": True}, "'max_length' must be int"),
        ({**TEXT, "min_length": 6}, "min_length <= max_length"),
        ({**BOX, "dtype": "object"}, "no dtype"),
        ({**BOX, "shape": [-1]}, "no array of the shape"),
        ({**BOX, "shape": [10**6, 10**6]}, "bytes"),
        ({**BOX, "shape": [1.0]}, "integers"),
        ({**BOX, "low": [0.0]}, "shape"),
        ({**BOX, "low": "NaN"}, "float32"),
        ({"space": "image", "height": 10**5, "width": 10**5, "channels": 3}, "bytes"),
        ({"space": "image", "height": 0, "width": 1, "channels": 3}, "at least 1 pixel"),
        ({"space": "discrete", "dtype": "int64", "n": 0, "start": 0}, "positive"),
        ({"space": "discrete", "dtype": "int8", "n": 10**9, "start": 0}, "n|bounds"),
        ({"space": "tuple", "spaces": [TEXT, {"space": "no"}]}, r"^\[1\]: "),
        ({"space": "dict", "spaces": [["a", {"space": "no"}]], "sort_keys": True}, r"^\['a'\]: "),
        ({"space": "dict", "spaces": {"a": TEXT}, "sort_keys": True}, "must be list"),
        ({"space": "sequence"}, "needs 'of'"),
        ({"space": "sequence", "of": {"space": "no"}}, r"^\[\*\]: "),
        ({"space": "one_of", "spaces": []}, "[Ee]mpty"),
        ({"space": "one_of", "spaces": [TEXT, {"space": "no"}]}, r"^\[1\]: "),
        ({"space": "dict", "spaces": [["a", TEXT], ["a", TEXT]], "sort_keys": True}, "twice"),
        (
            {
                "space": "chat",
                "min_messages": 0,
                "max_messages": 1,
                "max_length": 1,
                "roles": [["user"]],
            },
            "roles",
        ),
    ],
)
def test_a_document_that_describes_no_space_is_refused_with_what_is_wrong(document, reason):
    with pytest.raises(InvalidSpaceError, match=reason):
        space_from_json(document)


def test_spaces_nested_without_end_are_refused():
    document = TEXT
    for _ in range(200):
        document = {"space": "tuple", "spaces": [document]}
    with pytest.raises(InvalidSpaceError, match="deep"):
        space_from_json(document)


def test_many_large_arrays_together_are_refused_like_one():
    box = {**BOX, "shape": [2**22]}  # 16 MiB of float32
    with pytest.raises(InvalidSpaceError, match="bytes"):
        space_from_json({"space": "tuple", "spaces": [box] * 8})


class Halves(gym.spaces.Discrete):
    """A subclass that means something else."""


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Graph(spaces.Discrete(2), None), None),
        (spaces.Sequence(spaces.Discrete(2), stack=True), np.array([1])),
        (Halves(3), 1),
        (spaces.Dict({1: spaces.Discrete(2)}), {1: 0}),
        # Longer than 64 bits, and not the same on every machine.
        (spaces.Box(0, 1, (2,), np.longdouble), np.zeros(2, np.longdouble)),
    ],
    ids=["graph", "stacked", "subclass", "integer keys", "long double"],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_space_without_a_json_form_is_refused_everywhere(space, value, wrapped):
    if wrapped:
        space, value = spaces.Tuple([space]), (value,)
    with pytest.raises(UnsupportedSpaceError, match="has no JSON form"):
        space_to_json(space)
    with pytest.raises(UnsupportedSpaceError, match="has no JSON form"):
        json_schema(space)
    with pytest.raises(UnsupportedSpaceError, match="has no JSON form"):
        to_json(space, value)


def test_the_order_of_a_dict_and_how_it_sorts_survive():
    unsorted = spaces.Dict({"b": Text(), "a": Text()}, sort_keys=False)
    back = space_from_json(through_json(space_to_json(unsorted)))
    assert list(back.spaces) == ["b", "a"]
    assert back.sort_keys is False


def test_without_pillow_a_picture_in_json_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    space, picture = Image(1, 1), np.zeros((1, 1, 3), np.uint8)
    with pytest.raises(MissingExtraError, match=r"\.\[images\]"):
        to_json(space, picture)
    with pytest.raises(MissingExtraError, match=r"\.\[images\]"):
        from_json(space, "aGVsbG8=")
