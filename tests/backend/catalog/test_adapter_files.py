"""Adapters from anywhere: those that can be trained on are written as checkpoints, all others are refused."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from backend.catalog.adapter_files import SentAdapter, write_adapter
from backend.catalog.tensor_files import stored_tensors, weights_sample_sha256
from backend.learner.checkpoints import Checkpoint
from backend.policies.checkpoint_keeping import stored_weights
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.parts import LoRA

NANO = Path(__file__).parents[3] / "backend" / "models" / "nano"
CONFIG = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ["q_proj"],
}
Q = "base_model.model.model.layers.0.self_attn.q_proj"


def factors(rank=4, last=("q_proj",), dtype=np.float32):
    rng = np.random.default_rng(1)
    found = {}
    for name, stored in stored_tensors(NANO).items():
        path = name.removesuffix(".weight")
        if path.rpartition(".")[2] in last:
            out, into = stored.shape
            found[f"base_model.model.{path}.lora_A.weight"] = rng.normal(size=(rank, into)).astype(dtype)
            found[f"base_model.model.{path}.lora_B.weight"] = rng.normal(size=(out, rank)).astype(dtype)
    return found


@pytest.fixture
def write(tmp_path):
    """Write an adapter to `tmp_path/out`."""

    def write_it(tensors=None, config=None, *, raw=None, edit=None, **sent):
        file, out = tmp_path / "sent", tmp_path / "out"
        out.mkdir(exist_ok=True)
        save_file(factors() if tensors is None else tensors, file)
        if edit is not None:
            edit(file)
        if raw is not None:
            file.write_bytes(raw)
        text = config if isinstance(config, str) else json.dumps({**CONFIG, **(config or {})})
        return write_adapter(SentAdapter(file=file, config=text, **sent), NANO, out)

    return write_it


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_writes_checkpoint_that_learner_and_engine_read(write, tmp_path, dtype):
    tensors = {name: torch.tensor(value).to(getattr(torch, dtype)) for name, value in factors().items()}
    written = write(edit=lambda file: save_torch(tensors, file), config={"use_rslora": True})
    assert LoRA.model_validate(written.adapter) == LoRA(
        rank=4, alpha=8.0, rslora=True, target_modules=("q_proj",)
    )
    weights = stored_weights(Checkpoint.open(tmp_path / "out"))
    assert weights.tensors.keys() == tensors.keys()
    assert all(torch.equal(weights.tensors[name], tensor.float()) for name, tensor in tensors.items())


def of_layer(number, tensors):
    return {name: value for name, value in tensors.items() if f"layers.{number}." in name}


def test_names_layers_by_patterns_when_not_all_are_adapted(write):
    both = factors(last=("q_proj", "v_proj"))
    some = {"layers_to_transform": [0], "target_modules": ["q_proj", "v_proj"]}
    written = write(of_layer(0, both), some)
    assert written.adapter["target_modules"] == [
        "model.layers.0.self_attn.q_proj",
        "model.layers.0.self_attn.v_proj",
    ]
    assert write(both, some).adapter["target_modules"] == ["q_proj", "v_proj"]


def test_knows_base_model_by_its_weights(write):
    own = weights_sample_sha256(stored_tensors(NANO))
    other = weights_sample_sha256(stored_tensors(NANO.parent / "nano-instruct"))
    write(base_sha256=own)
    with pytest.raises(InvalidRequestError, check=lambda error: error.code == "other_model"):
        write(base_sha256=other)


def changed(name, value):
    return {**factors(), name: value}


def header_of(text):
    return struct.pack("<Q", len(text)) + text


def cut(file):
    file.write_bytes(file.read_bytes()[:-10])


def longer(file):
    file.write_bytes(file.read_bytes() + b"and more")


def overlapping(file):
    length = struct.unpack("<Q", file.read_bytes()[:8])[0]
    header = json.loads(file.read_bytes()[8 : 8 + length])
    first, second = [name for name in header if name.endswith("lora_A.weight")][:2]
    header[second]["data_offsets"] = header[first]["data_offsets"]
    file.write_bytes(header_of(json.dumps(header).encode()) + file.read_bytes()[8 + length :])


NAN = np.full((4, 128), np.nan, dtype=np.float32)
HOSTILE = {
    "pickle": {"raw": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94." * 9},
    "empty file": {"raw": b""},
    "cut": {"edit": cut},
    "bytes after the tensors": {"edit": longer},
    "overlapping tensors": {"edit": overlapping},
    "header bomb": {"raw": struct.pack("<Q", 2**62) + b"{}"},
    "large header": {"raw": header_of(b"{" + b" " * (9 * 2**20) + b"}")},
    "nested header": {"raw": header_of(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")},
    "tensor twice": {
        "raw": header_of(
            f'{{"{Q}.lora_A.weight": {{"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, '
            f'"{Q}.lora_A.weight": {{"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}}}'.encode()
        )
        + bytes(8)
    },
    "negative shape": {
        "raw": header_of(b'{"a": {"dtype": "F32", "shape": [-1, -4], "data_offsets": [0, 16]}}') + bytes(16)
    },
    "huge rank": {"config": {"r": 10**9}},
    "rank of another shape": {"config": {"r": 8}},
    "infinite alpha": {"config": json.dumps({**CONFIG, "lora_alpha": float("inf")})},
    "rank that is text": {"config": {"r": "4"}},
    "settings twice": {"config": json.dumps(CONFIG)[:-1] + ', "r": 8}'},
    "settings nested": {"config": "[" * 100_000},
    "NaN": {"tensors": changed(f"{Q}.lora_A.weight", NAN)},
    "integers": {"tensors": changed(f"{Q}.lora_A.weight", np.ones((4, 128), dtype=np.int32))},
    "doubles": {"tensors": factors(dtype=np.float64)},
    "half of a pair": {"tensors": {f"{Q}.lora_A.weight": factors()[f"{Q}.lora_A.weight"]}},
    "unknown tensor": {"tensors": changed("base_model.model.lm_head.weight", np.ones((2, 2), np.float32))},
    "path that leads out": {
        "tensors": {
            f"base_model.model.../../x.lora_{side}.weight": np.ones((4, 4), np.float32) for side in "AB"
        }
    },
    "no tensors": {"tensors": {}},
    "embeddings": {"tensors": factors(last=("embed_tokens",))},
    "wrong width": {"tensors": changed(f"{Q}.lora_A.weight", np.ones((4, 120), np.float32))},
    "layers of a larger model": {
        "tensors": {
            **factors(),
            **{name.replace("layers.0", "layers.9"): value for name, value in of_layer(0, factors()).items()},
        }
    },
    "layers of a smaller model": {"tensors": of_layer(0, factors())},
    "DoRA": {"config": {"use_dora": True}},
    "other kind": {"config": {"peft_type": "IA3"}},
    "classifier": {"config": {"task_type": "SEQ_CLS"}},
    "saved modules": {"config": {"modules_to_save": ["lm_head"]}},
    "biases": {"config": {"bias": "all"}},
    "ranks by layer": {"config": {"rank_pattern": {"q_proj": 2}}},
    "changed base": {"config": {"init_lora_weights": "pissa_niter_4"}},
    "setting of a later version": {"config": {"use_newlora": True}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_refuses_hostile_adapter_in_one_sentence(write, tmp_path, name):
    with pytest.raises(InvalidRequestError) as refused:
        write(**HOSTILE[name])
    assert refused.value.field == "source"
    assert len(refused.value.message) < 400
    assert "\n" not in refused.value.message
    assert not (tmp_path / "out" / "manifest.json").exists()
