import contextlib
import enum
import json
import math
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tinkergym.errors import InvalidRequestError
from tinkergym.serving.protocol import MOST_JSON_CHARACTERS, MOST_JSON_VALUES, decode, encode

NUMBERS = ["bool", "int8", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64"]
plain = (
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats()
    | st.text(st.characters(), max_size=20)
    | st.binary(max_size=20)
    | arrays.arrays(
        st.sampled_from(NUMBERS).map(np.dtype), arrays.array_shapes(min_dims=0, max_dims=3, min_side=0)
    )
    | arrays.from_dtype(np.dtype("float32"))
    | arrays.from_dtype(np.dtype("int16"))
)
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5) | st.sampled_from(["$array", "$"]), inner, max_size=4)
        | st.dictionaries(st.integers() | st.tuples(st.text(max_size=3)), inner, max_size=3)
    ),
    max_leaves=12,
)


def same(one, other):
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def without_nan_bits(value):
    """A NaN that is a number of numpy's travels as a NaN, not with whatever bits it had."""
    return isinstance(value, np.floating) and np.isnan(value)


@given(values)
def test_a_value_arrives_as_what_it_was(value):
    arrived = decode(encode({"value": value}))["value"]
    assert without_nan_bits(value) or "nan" in repr(value) or same(value, arrived)


@given(values)
def test_a_message_is_the_same_after_it_travelled_twice(value):
    once = decode(encode({"value": value}))
    assert encode(once) == encode(decode(encode(once)))


@given(st.binary() | st.text())
def test_any_frame_is_a_message_or_is_refused(frame):
    try:
        assert isinstance(decode(frame), dict)
    except InvalidRequestError as error:
        assert "no message" in str(error)


@given(st.binary(max_size=200), st.integers(0, 300), st.integers(0, 255))
def test_a_frame_with_a_wrong_byte_is_a_message_or_is_refused(data, position, byte):
    frame = bytearray(encode({"a": np.frombuffer(data, np.uint8), "b": (1, {"$x": data})}))
    frame[position % len(frame)] = byte
    with contextlib.suppress(InvalidRequestError):
        assert isinstance(decode(bytes(frame)), dict)


def test_text_travels_as_text_and_arrays_as_bytes():
    assert isinstance(encode({"observation": "é", "reward": math.inf}), str)
    image = np.zeros((64, 64, 3), np.uint8)
    assert len(encode({"observation": image})) < image.nbytes + 200


def test_an_array_that_arrived_can_be_written_to():
    arrived = decode(encode({"a": np.arange(4)}))["a"]
    arrived[0] = 9
    assert arrived[0] == 9


def test_of_a_subclass_the_plain_value_travels():
    class Colour(enum.StrEnum):
        RED = "red"

    arrived = decode(encode({"colour": Colour.RED}))["colour"]
    assert (arrived, type(arrived)) == ("red", str)


@pytest.mark.parametrize(
    "value",
    [{1, 2}, object(), np.array([object()]), 1j, np.array(["a"]), np.longdouble(1)],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_travel_is_refused_by_name(value):
    with pytest.raises(TypeError, match="cannot travel"):
        encode({"info": {"inside": [value]}})


def test_a_value_that_contains_itself_is_refused():
    value = []
    value.append(value)
    with pytest.raises(TypeError, match="nested too deeply"):
        encode({"value": value})


def array(number):
    return {"$array": ["uint8", [4], number]}


@pytest.mark.parametrize("item", [array(0), {"$bytes": 0}])
def test_bytes_that_are_named_twice_are_refused(item):
    head = json.dumps({"values": [item, item], "$blobs": [4]}).encode()
    frame = struct.pack("<I", len(head)) + head + b"1234"
    with pytest.raises(InvalidRequestError):
        decode(frame)


@pytest.mark.parametrize(
    "info",
    [
        "[" + "0," * MOST_JSON_VALUES + "0]",
        "[" + "[],[" * (MOST_JSON_VALUES // 2),
        '"' + "x" * MOST_JSON_CHARACTERS + '"',
    ],
    ids=["numbers", "brackets", "a text"],
)
@pytest.mark.parametrize("binary", [False, True])
def test_a_message_that_takes_many_times_its_size_in_memory_is_refused_before_it_is_read(info, binary):
    text = f'{{"i":0,"info":{info},"$blobs":[]}}'
    frame = struct.pack("<I", len(text)) + text.encode() if binary else text
    tracemalloc.start()
    with pytest.raises(InvalidRequestError):
        decode(frame)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * len(frame)
