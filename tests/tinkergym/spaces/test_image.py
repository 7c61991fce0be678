import copy
import io
import pickle
import struct
import sys
import zlib

import numpy as np
import PIL.Image
import pytest
from gymnasium import spaces
from gymnasium.spaces.utils import flatten, flatten_space, unflatten
from hypothesis import given
from hypothesis import strategies as st

from tinkergym.errors import InvalidValueError, MissingExtraError
from tinkergym.spaces import Image

sizes = st.tuples(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3, 4]))


@given(sizes, st.integers(0, 2**31))
def test_writes_picture_as_png_file_that_others_can_read(size, seed):
    space = Image(*size, seed=seed)
    pixels = space.sample()
    data = space.to_png(pixels)
    back = space.from_png(data)
    assert (back.dtype, back.shape) == (np.uint8, size)
    assert (back == pixels).all()
    back[0, 0, 0] = 1  # a copy that belongs to the caller
    assert PIL.Image.open(io.BytesIO(data)).size == (size[1], size[0])


def test_writes_picture_as_it_looks_whatever_its_memory_layout():
    space = Image(2, 3)
    pixels = Image(3, 2, seed=0).sample().transpose(1, 0, 2)
    assert not pixels.flags["C_CONTIGUOUS"]
    assert (space.from_png(space.to_png(pixels)) == pixels).all()


@pytest.mark.parametrize(
    "thing",
    [
        np.zeros((2, 3, 3), np.float32),
        np.zeros((2, 3, 3), np.int64),
        np.zeros((3, 2, 3), np.uint8),
        np.zeros((2, 3), np.uint8),
        "a picture",
        None,
    ],
)
def test_rejects_other_arrays_and_things_as_pictures(thing):
    assert thing not in Image(2, 3)
    with pytest.raises(InvalidValueError):
        Image(2, 3).to_png(thing)


@pytest.mark.parametrize("arguments", [(0, 1), (1, -1), (1, 1, 2), (1, 1, 0)])
def test_rejects_impossible_sizes(arguments):
    with pytest.raises(ValueError, match="must be"):
        Image(*arguments)


def test_compares_spaces_by_size_and_unlike_boxes():
    assert Image(2, 3) == Image(2, 3)
    assert Image(2, 3) != Image(3, 2)
    box = spaces.Box(0, 255, (2, 3, 3), np.uint8)
    assert Image(2, 3) != box
    assert box != Image(2, 3)


def test_survives_pickling_and_copying_with_its_generator():
    space = Image(2, 3, seed=1)
    copies = [pickle.loads(pickle.dumps(space)), copy.deepcopy(space)]
    assert copies == [space, space]
    expected = space.sample()
    assert all((other.sample() == expected).all() for other in copies)


@given(sizes, st.integers(0, 2**31))
def test_undoes_flattening_by_unflattening(size, seed):
    space = Image(*size, seed=seed)
    pixels = space.sample()
    flat = flatten(space, pixels)
    assert flat in flatten_space(space)
    assert (unflatten(space, flat) == pixels).all()


def saved(picture, form="PNG"):
    file = io.BytesIO()
    picture.save(file, format=form)
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a readable PNG"),
        (b"hello", "not a readable PNG"),
        (Image(3, 3).to_png(np.zeros((3, 3, 3), np.uint8))[:40], "not a readable PNG"),
        (Image(3, 3).to_png(np.zeros((3, 3, 3), np.uint8))[:-30], "not a readable PNG"),
        (saved(PIL.Image.new("RGB", (3, 3)), "GIF"), "not a readable PNG"),
        (saved(PIL.Image.new("RGB", (3, 4))), "3 x 4 RGB"),
        (saved(PIL.Image.new("P", (3, 3))), "3 x 3 P"),
        (saved(PIL.Image.new("RGBA", (3, 3))), "3 x 3 RGBA"),
    ],
)
def test_rejects_file_that_is_no_picture_of_the_space(data, reason):
    with pytest.raises(InvalidValueError, match=reason):
        Image(3, 3).from_png(data)


def test_rejects_small_file_claiming_to_be_huge_before_unpacking():
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 9_000, 9_000, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(100))
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    with pytest.raises(InvalidValueError):
        Image(3, 3).from_png(data)


def test_names_the_extra_without_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError):
        Image(1, 1).to_png(np.zeros((1, 1, 3), np.uint8))
