"""Weights that another process reads where they lie."""

from __future__ import annotations

import json
import stat
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.compute.weights import FullWeights, weights_sha256
from backend.engines.vllm.shared_weights import open_weights, share_in_file, share_on_device

READER = """
import json, sys
from backend.engines.vllm.shared_weights import open_weights
from backend.compute.weights import FullWeights, weights_sha256
kept = []
for line in sys.stdin:
    kept.append(open_weights(json.loads(line)))
    print(weights_sha256(FullWeights(tensors=kept[-1])), flush=True)
"""
ELSEWHERE = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
    ),
]


def same_bits(found, expected):
    assert list(found) == list(expected)
    assert weights_sha256(FullWeights(tensors=found)) == weights_sha256(FullWeights(tensors=expected))


@given(
    kinds=st.lists(st.sampled_from(["float32", "bfloat16", "float16", "int64", "uint8"]), max_size=6),
    shapes=st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=6, max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_finds_shared_weights_to_the_bit_whatever_type_and_shape(tmp_path_factory, kinds, shapes):
    tensors = {
        f"layers.{i}": torch.arange(torch.Size(shape).numel()).reshape(shape).to(getattr(torch, kind)) + i
        for i, (kind, shape) in enumerate(zip(kinds, shapes, strict=False))
    }
    path = tmp_path_factory.mktemp("shared") / "weights"
    same_bits(open_weights(share_in_file(tensors, path)), tensors)


def test_shares_tied_weights_once_and_other_views_separately(tmp_path):
    embedding = torch.randn(64, 32)
    alone = share_in_file({"embed": embedding}, tmp_path / "alone")
    tied = {"embed": embedding, "head": embedding}
    opening = share_in_file(tied, tmp_path / "tied")
    assert opening["bytes"] == alone["bytes"]
    same_bits(open_weights(opening), tied)
    turned = {"square": embedding[:32], "turned": embedding[:32].t(), "narrow": embedding[:, 1:3]}
    same_bits(open_weights(share_in_file(turned, tmp_path / "turned")), turned)


def test_keeps_writes_to_an_opened_weight_private(tmp_path):
    opening = share_in_file({"w": torch.ones(3)}, tmp_path / "weights")
    open_weights(opening)["w"].zero_()
    assert open_weights(opening)["w"].tolist() == [1.0, 1.0, 1.0]


def test_lets_only_this_user_read_and_never_overwrites_files(tmp_path):
    path = tmp_path / "weights"
    share_in_file({"w": torch.ones(3)}, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        share_in_file({"w": torch.zeros(3)}, path)
    assert path.read_bytes()[:12] == torch.ones(3).numpy().tobytes()


@pytest.mark.parametrize("device", ELSEWHERE)
def test_reads_weights_repeatedly_even_after_a_reader_was_killed(tmp_path, device):
    tensors = {"a": torch.randn(300, 7), "b": torch.randn(5).bfloat16()}
    memory, opening = None, {}
    if device == "cpu":
        opening = share_in_file(tensors, tmp_path / "weights")
    else:
        memory, opening = share_on_device(tensors, torch.device(device))

    def read_and_be_killed():
        with subprocess.Popen(
            [sys.executable, "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as reader:
            for _ in range(2):
                reader.stdin.write(json.dumps(opening) + "\n")
                reader.stdin.flush()
                assert reader.stdout.readline().strip() == weights_sha256(FullWeights(tensors=tensors))
            reader.kill()

    read_and_be_killed()
    if memory is None:
        same_bits(open_weights(opening), tensors)  # a file, which this process may open, too
    else:
        read_and_be_killed()
        taken = torch.cuda.memory_allocated()
        size = memory.nbytes
        del memory
        assert torch.cuda.memory_allocated() <= taken - size
