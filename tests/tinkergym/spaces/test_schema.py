import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from tests.tinkergym.spaces.strategies import BOX, through_json
from tinkergym.errors import InvalidSpaceError
from tinkergym.spaces import (
    Text,
    json_schema,
    space_from_json,
    space_to_json,
    to_json,
)

TEXT = {"space": "text", "min_length": 0, "max_length": 5}


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
        ({**BOX, "shape": [-1]}, "an array cannot have the shape"),
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
def test_rejects_document_without_a_space_and_says_what_is_wrong(document, reason):
    with pytest.raises(InvalidSpaceError, match=reason):
        space_from_json(document)


def test_rejects_spaces_nested_without_end():
    document = TEXT
    for _ in range(200):
        document = {"space": "tuple", "spaces": [document]}
    with pytest.raises(InvalidSpaceError):
        space_from_json(document)


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
def test_rejects_space_without_a_json_form_everywhere(space, value, wrapped):
    if wrapped:
        space, value = spaces.Tuple([space]), (value,)
    with pytest.raises(InvalidSpaceError):
        space_to_json(space)
    with pytest.raises(InvalidSpaceError):
        json_schema(space)
    with pytest.raises(InvalidSpaceError):
        to_json(space, value)


def test_preserves_order_and_sorting_of_a_dict():
    unsorted = spaces.Dict({"b": Text(), "a": Text()}, sort_keys=False)
    back = space_from_json(through_json(space_to_json(unsorted)))
    assert list(back.spaces) == ["b", "a"]
    assert back.sort_keys is False
