"""PEFT adapters from anywhere, checked against their base model and written as checkpoints.

Reads safetensors only, without torch, and in bounded memory.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.catalog.tensor_files import (
    StoredTensor,
    as_float32,
    chunks_of,
    first_not_finite,
    stored_tensors,
    tensors_of_file,
    weights_sample_sha256,
)
from backend.compute.layer_names import names
from tinkergym.errors import UnknownModelError
from tinkergym.schema.adapter_upload import CONFIG, adapter_settings, other_base, refused
from tinkergym.schema.jobs.parts import LoRA
from tinkergym.user_code.quoting import quoted

WEIGHTS = "adapter_model.safetensors"
_MOST_HEADER_BYTES = 8 * 2**20
_MOST_TENSORS = 20_000
_MOST_PATTERNS = 64
"""As many as `LoRA.target_modules` may have."""
_FACTOR = re.compile(r"base_model\.model\.([\w.]{1,300})\.lora_([AB])\.weight")
_IN_LAYER = re.compile(r"(?:^|.*?\.)((?:layers|h|blocks)\.\d+\..*)")
_VISION = re.compile(r"(^|\.)(vision|visual|vit)\w*\.")
_NOT_ADAPTED = re.compile(
    r"(^|\.)(embed_tokens|wte|wpe|lm_head|embed_in|embed_out|kv_b_proj|router|experts|gate)(\.|$)"
)
_AGAIN = "copy or download it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class SentAdapter:
    """An adapter as it was sent."""

    file: Path
    """Its weights, a safetensors file."""
    config: str
    """The text of its `adapter_config.json`."""
    base_sha256: str = ""
    """What `weights_sample_sha256` returned for the model that it was trained on; empty if unknown."""
    extra: dict[str, Any] = field(default_factory=dict)
    """For the checkpoint's manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenAdapter:
    """A checkpoint that was made of an adapter."""

    adapter: dict[str, Any]
    """Settings of `LoRA`."""
    sha256: str
    """Hash of its weights file."""
    files: dict[str, int]
    """Sizes in bytes."""


def write_adapter(sent: SentAdapter, base: Path, out: Path) -> WrittenAdapter:
    """Check an adapter, and write it as a policy's checkpoint of step 1, in float32.

    Args:
        sent: The adapter.
        base: The folder of the base model.
        out: An existing folder.

    Raises:
        InvalidRequestError: It cannot be trained on, or not on this base model.
    """
    settings = adapter_settings(sent.config)
    tensors = _tensors(sent.file, settings["r"])
    stored = stored_tensors(base)
    if sent.base_sha256 and sent.base_sha256 != weights_sample_sha256(stored):
        raise other_base("the adapter was trained on a model with other weights than this one's")
    adapter = LoRA(
        rank=settings["r"],
        alpha=float(settings["lora_alpha"]),
        rslora=settings.get("use_rslora", False),
        target_modules=_patterns(settings, tensors, stored),
    )
    if bad := first_not_finite(tensors, most_bytes=None):
        raise refused(f"the adapter's {bad!r} contains NaN or infinity", "use an earlier checkpoint of it")
    weights_sha256 = _write_weights(out / WEIGHTS, tensors)
    _write_json(out / CONFIG, {**settings, "inference_mode": True})
    files = {name: _entry(out / name) for name in (CONFIG, WEIGHTS)}
    # As `backend.learner.checkpoints` reads it.
    manifest = {
        "step": 1,
        "policy_version": 1,
        "adapter": adapter.model_dump(mode="json"),
        "model_fingerprint": "",
        "optimizer_steps": 0,
        "weights_file": WEIGHTS,
        "weights_sha256": weights_sha256,
        "files": files,
        "extra": sent.extra,
    }
    _write_json(out / "manifest.json", manifest)
    sizes = {name: entry["bytes"] for name, entry in files.items()}
    return WrittenAdapter(
        adapter=adapter.model_dump(mode="json"),
        sha256=files[WEIGHTS]["sha256"],
        files={**sizes, "manifest.json": (out / "manifest.json").stat().st_size},
    )


def _tensors(upload: Path, rank: int) -> dict[str, StoredTensor]:
    """Return the adapter's factors: pairs of the same rank, and nothing else."""
    try:
        tensors = tensors_of_file(upload, most_header_bytes=_MOST_HEADER_BYTES)
    except UnknownModelError as error:
        raise refused(f"{WEIGHTS}: {error.message}", _AGAIN) from None
    if not 0 < len(tensors) <= _MOST_TENSORS:
        raise refused(f"{WEIGHTS} has {len(tensors)} tensors; an adapter has 1 to {_MOST_TENSORS}", _AGAIN)
    end = min(tensor.begin for tensor in tensors.values())
    for tensor in sorted(tensors.values(), key=lambda one: one.begin):
        if tensor.begin != end:
            raise refused(f"{WEIGHTS} has tensors that overlap, or gaps between them", _AGAIN)
        end = tensor.end
    if end != upload.stat().st_size:
        raise refused(f"{WEIGHTS} has bytes after its tensors", _AGAIN)
    for name, tensor in tensors.items():
        found = _FACTOR.fullmatch(name)
        if found is None:
            raise refused(f"{WEIGHTS} has {quoted(name)}, which is not a factor of a LoRA adapter")
        if tensor.dtype not in ("F32", "F16", "BF16"):
            raise refused(
                f"{WEIGHTS} has tensors of type {quoted(tensor.dtype)}", "save it as float32 or bfloat16"
            )
        place = 0 if found[2] == "A" else 1
        if len(tensor.shape) != 2 or 0 in tensor.shape or tensor.shape[place] != rank:
            raise refused(
                f"{name!r} has the shape {list(tensor.shape)}, which does not have the rank {rank}", _AGAIN
            )
        other = name.replace(".lora_A.", ".lora_B.") if place == 0 else name.replace(".lora_B.", ".lora_A.")
        if other not in tensors:
            raise refused(f"{WEIGHTS} has {name!r} without {other!r}", _AGAIN)
    return tensors


def _patterns(
    settings: Mapping[str, Any], tensors: Mapping[str, StoredTensor], stored: Mapping[str, StoredTensor]
) -> tuple[str, ...]:
    """Return which layers are adapted, as `LoRA.target_modules`; each must be one of the base model's."""
    paths = sorted({found[1] for name in tensors if (found := _FACTOR.fullmatch(name))})
    layers = {
        _place(name.removesuffix(".weight")): tensor.shape
        for name, tensor in stored.items()
        if name.endswith(".weight") and len(tensor.shape) == 2
    }
    for path in paths:
        if _NOT_ADAPTED.search(path):
            raise refused(
                f"the adapter changes {path!r}; embeddings, output heads (tied or not), routers and experts "
                "are not adapted here"
            )
        if _VISION.search(path):
            raise refused(f"the adapter changes {path!r}, a layer of a vision tower")
        a = tensors[f"base_model.model.{path}.lora_A.weight"].shape
        b = tensors[f"base_model.model.{path}.lora_B.weight"].shape
        shape = layers.get(_place(path))
        if shape is None:
            raise other_base(f"the adapter changes the layer {path!r}, which the base model does not have")
        if (b[0], a[1]) != (shape[::-1] if settings.get("fan_in_fan_out") is True else shape):
            raise other_base(
                f"the adapter changes {path!r} as a layer of shape {[b[0], a[1]]}, but the base model's has "
                f"{list(shape)}"
            )
    return _shortest(settings, paths, [place for place in layers if not _NOT_ADAPTED.search(place)])


def _shortest(settings: Mapping[str, Any], paths: list[str], layers: Iterable[str]) -> tuple[str, ...]:
    """Describe layers by names if it has all of a name, else by whole layers, else by paths."""
    adapted = {_place(path) for path in paths}
    there = [place for place in layers if not _VISION.search(place)]
    last = sorted({path.rpartition(".")[2] for path in paths})
    if {place for place in there if place.rpartition(".")[2] in last} == adapted:
        return tuple(last)
    asked = settings.get("target_modules")
    plain = isinstance(asked, list) and not any("." in str(name) for name in asked)
    if plain and not (settings.get("layers_to_transform") or settings.get("exclude_modules")):
        raise other_base("the adapter lacks layers that the base model has")
    whole = sorted({".".join(place.split(".")[:2]) + ".*" for place in adapted})
    for patterns in (whole, paths):
        reached = {place for place in there if any(names(pattern, place) for pattern in patterns)}
        if len(patterns) <= _MOST_PATTERNS and (patterns is paths or reached == adapted):
            return tuple(patterns)
    raise refused(f"the adapter changes {len(paths)} layers that {_MOST_PATTERNS} patterns cannot name")


def _place(path: str) -> str:
    """Return a layer's path without what differs between a model's files and its modules."""
    found = _IN_LAYER.match(path)
    if found is None:
        return ".".join(path.split(".")[-2:])
    return ("visual." if _VISION.search(path) else "") + found[1]


def _write_weights(path: Path, tensors: Mapping[str, StoredTensor]) -> str:
    """Write the tensors as float32; returns what `backend.compute.weights.weights_sha256` will."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in sorted(tensors):
        begin, end = end, end + 4 * math.prod(tensors[name].shape)
        header[name] = {
            "dtype": "F32",
            "shape": list(tensors[name].shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    # As the library writes it: readers that map the file need the numbers aligned.
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(tensors):
            digest.update(f"{name}|torch.float32|{tensors[name].shape}|".encode())
            for chunk in chunks_of(tensors[name]):
                written = as_float32(tensors[name].dtype, chunk)
                digest.update(written)
                file.write(written)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=2, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _entry(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
