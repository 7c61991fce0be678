import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tinkergym.spaces.strategies import any_spaces
from tinkergym.errors import (
    InvalidValueError,
    TinkerGymError,
)
from tinkergym.spaces import (
    Chat,
    Image,
    Text,
    from_json,
    to_json,
)


@given(any_spaces, st.data())
@settings(deadline=None, max_examples=40)
def test_reads_value_of_space_or_raises_typed_error(space, data):
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
        (spaces.OneOf([Text()]), "x", "of a space and a value"),
    ],
)
def test_rejects_value_outside_its_space_and_says_where(space, value, where):
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
def test_rejects_document_without_a_value_of_the_space(space, document):
    with pytest.raises(InvalidValueError):
        from_json(space, document)
    # In a place of its own, the error says which.
    with pytest.raises(InvalidValueError):
        from_json(spaces.Dict(here=space), {"here": document})
