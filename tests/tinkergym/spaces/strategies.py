"""Spaces of every kind, drawn at random."""

import json

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

from tinkergym.messages import ROLES
from tinkergym.spaces import (
    Chat,
    Image,
    Text,
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


BOX = {"space": "box", "dtype": "float32", "shape": [2], "low": 0.0, "high": 1.0}
