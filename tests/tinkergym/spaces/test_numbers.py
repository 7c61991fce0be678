import json

import numpy as np
import pytest

from tinkergym.spaces.numbers import DTYPES, from_lists, to_lists


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_restores_every_number_through_json_to_the_bit(dtype, shape):
    raw = np.random.default_rng(0).integers(0, 2, (*shape, dtype.itemsize), np.uint8)
    array = np.ascontiguousarray(raw).view(dtype).reshape(shape)
    if dtype.kind == "f":
        array = np.where(np.arange(array.size).reshape(shape) % 2, np.inf, array).astype(dtype)
    back = from_lists(json.loads(json.dumps(to_lists(array), allow_nan=False)), shape, dtype)
    assert (back.dtype, back.shape, back.tobytes()) == (dtype, shape, array.tobytes())


@pytest.mark.parametrize(
    ("lists", "dtype"),
    [
        *(([1.5], "int8"), ([300], "uint8"), ([True], "int8"), ([1], "bool"), (["NaN"], "float32")),
        *((1, "int8"), ([[1]], "int8"), ([1, 2], "int8"), ([-1], "uint64")),
    ],
)
def test_rejects_what_is_not_of_the_shape_and_type(lists, dtype):
    with pytest.raises(ValueError, check=lambda error: error.args):
        from_lists(lists, (1,), np.dtype(dtype))
