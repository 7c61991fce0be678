import contextlib
import json
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tinkergym.serving.travelling import values
from tinkergym.errors import InvalidRequestError
from tinkergym.serving.wire_protocol import MOST_JSON_CHARACTERS, MOST_JSON_VALUES, decode, encode


@given(values)
def test_restores_message_that_travelled_twice(value):
    once = decode(encode({"value": value}))
    assert encode(once) == encode(decode(encode(once)))


@given(st.binary() | st.text())
def test_reads_any_frame_as_message_or_rejects_it(frame):
    try:
        assert isinstance(decode(frame), dict)
    except InvalidRequestError as error:
        assert "is not a message" in str(error)


@given(st.binary(max_size=200), st.integers(0, 300), st.integers(0, 255))
def test_rejects_or_reads_a_frame_with_a_wrong_byte(data, position, byte):
    frame = bytearray(encode({"a": np.frombuffer(data, np.uint8), "b": (1, {"$x": data})}))
    frame[position % len(frame)] = byte
    with contextlib.suppress(InvalidRequestError):
        assert isinstance(decode(bytes(frame)), dict)


def array(number):
    return {"$array": ["uint8", [4], number]}


@pytest.mark.parametrize("item", [array(0), {"$bytes": 0}])
def test_rejects_bytes_that_are_named_twice(item):
    head = json.dumps({"values": [item, item], "$blobs": [4]}).encode()
    frame = struct.pack("<I", len(head)) + head + b"1234"
    with pytest.raises(InvalidRequestError):
        decode(frame)


@pytest.mark.parametrize(
    ("begin", "part", "times", "end"),
    [
        ("[", "0,", MOST_JSON_VALUES, "0]"),
        ("[", "[],[", MOST_JSON_VALUES // 2, ""),
        ('"', "x", MOST_JSON_CHARACTERS, '"'),
    ],
    ids=["numbers", "brackets", "a text"],
)
@pytest.mark.parametrize("binary", [False, True])
def test_refuses_message_that_expands_in_memory(begin, part, times, end, binary):
    text = f'{{"i":0,"info":{begin}{part * times}{end},"$blobs":[]}}'
    frame = struct.pack("<I", len(text)) + text.encode() if binary else text
    tracemalloc.start()
    with pytest.raises(InvalidRequestError):
        decode(frame)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * len(frame)
