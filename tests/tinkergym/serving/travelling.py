"""Values that can travel."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

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
