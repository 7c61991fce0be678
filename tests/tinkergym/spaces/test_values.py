import json

import jsonschema
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from hypothesis import given, settings

from tests.tinkergym.spaces.strategies import BOX, any_spaces, nested, seeds, through_json
from tinkergym.errors import InvalidSpaceError
from tinkergym.spaces import (
    from_json,
    json_schema,
    space_from_json,
    space_to_json,
    to_json,
)


@given(any_spaces, seeds)
@settings(deadline=None, max_examples=40)
def test_restores_values_identically_that_fit_the_schema(space, seed):
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
def test_restores_gymnasiums_own_form_of_many_values(space, seed):
    space.seed(seed)
    values = [space.sample() for _ in range(3)]
    # Gymnasium's form writes infinities as Python does, which samples of bounded spaces do not hold.
    back = space.from_jsonable(json.loads(json.dumps(space.to_jsonable(values))))
    assert data_equivalence(list(back), values, exact=True)


@pytest.mark.parametrize("number", [np.inf, -np.inf, -0.0, 1e-45, np.float32(0.1), 5e-324, 2**53 + 1])
def test_keeps_every_bit_of_floats(number):
    space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    value = np.array([number, 1.0])
    back = from_json(space, through_json(to_json(space, value)))
    assert back.tobytes() == value.tobytes()
    jsonschema.validate(through_json(to_json(space, value)), json_schema(space))


@pytest.mark.parametrize("value", [np.array(7, np.int8), np.int8(7), 7])
def test_returns_single_box_number_as_array_for_gymnasium(value):
    back = from_json(spaces.Box(0, 9, (), np.int8), 7)
    assert (type(back), back.shape, back.dtype, int(back)) == (np.ndarray, (), np.int8, 7)
    assert to_json(spaces.Box(0, 9, (), np.int8), value) == 7


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_keeps_shape_of_arrays_without_elements(shape):
    space = spaces.Box(0, 1, shape)
    assert space_from_json(through_json(space_to_json(space))) == space
    document = through_json(to_json(space, space.sample()))
    jsonschema.validate(document, json_schema(space))
    assert from_json(space, document).shape == shape


def test_rejects_many_large_arrays_together_like_one():
    box = {**BOX, "shape": [2**22]}  # 16 MiB of float32
    with pytest.raises(InvalidSpaceError):
        space_from_json({"space": "tuple", "spaces": [box] * 8})
