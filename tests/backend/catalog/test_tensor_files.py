"""Files that are named as weights and are none: each is refused at once."""

import json
import os
import struct

import pytest

from backend.catalog.tensor_files import INDEX, WHOLE, has_all_weights, tensors_of_file
from tinkergym.errors import UnknownModelError


def test_does_not_wait_for_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    # Somebody holds it, so that code that opens it fails this test by an empty file instead of hanging.
    holder = os.open(tmp_path / "model.safetensors", os.O_RDWR | os.O_NONBLOCK)
    os.write(holder, struct.pack("<Q", 2) + b"{}")
    with pytest.raises(UnknownModelError):
        tensors_of_file(tmp_path / "model.safetensors")
    os.close(holder)


@pytest.mark.parametrize(
    ("length", "shape", "reason"),
    [
        (2**63, [1], "its header has"),
        (None, [1] * 65, "no tensor has"),
        (None, [2**64, 0], "no tensor has"),
    ],
)
def test_rejects_numbers_that_no_tensor_has(tmp_path, length, shape, reason):
    header = json.dumps({"w": {"dtype": "X1", "shape": shape, "data_offsets": [0, 0]}}).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", length or len(header)) + header)
    with pytest.raises(UnknownModelError, match=reason) as caught:
        tensors_of_file(file)
    assert caught.value.field == "model"


@pytest.mark.parametrize(
    ("files", "whole"),
    [
        ([], False),
        ([WHOLE], True),
        (["a.safetensors", "b.safetensors"], False),
        (["a.safetensors", INDEX], False),
        (["a.safetensors", "b.safetensors", INDEX], True),
    ],
)
def test_knows_a_download_that_was_interrupted(tmp_path, files, whole):
    for name in files:
        (tmp_path / name).write_text("")
    if INDEX in files:
        places = {"x": "a.safetensors", "y": "b.safetensors"}
        (tmp_path / INDEX).write_text(json.dumps({"weight_map": places}))
    assert has_all_weights(tmp_path) == whole
