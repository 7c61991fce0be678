import enum
import math

import numpy as np
import pytest
from hypothesis import given

from tests.tinkergym.serving.travelling import values
from tinkergym.serving.wire_protocol import decode, encode


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
def test_restores_value_as_what_it_was(value):
    arrived = decode(encode({"value": value}))["value"]
    assert without_nan_bits(value) or "nan" in repr(value) or same(value, arrived)


def test_sends_text_as_text_and_arrays_as_bytes():
    assert isinstance(encode({"observation": "é", "reward": math.inf}), str)
    image = np.zeros((64, 64, 3), np.uint8)
    assert len(encode({"observation": image})) < image.nbytes + 200


def test_lets_caller_write_to_received_array():
    arrived = decode(encode({"a": np.arange(4)}))["a"]
    arrived[0] = 9
    assert arrived[0] == 9


def test_sends_plain_value_of_a_subclass():
    class Colour(enum.StrEnum):
        RED = "red"

    arrived = decode(encode({"colour": Colour.RED}))["colour"]
    assert (arrived, type(arrived)) == ("red", str)


@pytest.mark.parametrize(
    "value",
    [{1, 2}, object(), np.array([object()]), 1j, np.array(["a"]), np.longdouble(1)],
    ids=lambda value: type(value).__name__,
)
def test_rejects_by_name_what_cannot_travel(value):
    with pytest.raises(TypeError, match="cannot be sent"):
        encode({"info": {"inside": [value]}})


def test_rejects_value_that_contains_itself():
    value = []
    value.append(value)
    with pytest.raises(TypeError, match="nested too deeply"):
        encode({"value": value})
