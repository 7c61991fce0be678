"""Checkpoints: a directory whose manifest, written last, has the size and SHA-256 of every other file.

Files are synced to disk. This module handles files and tensors, not policies; where a checkpoint is kept, and
when it counts, is said in `backend.store.blobs`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError
from safetensors import safe_open
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save_file

from backend.store.local_blobs import disk_answers, missing_named
from tinkergym.errors import CheckpointCorruptError
from tinkergym.schema.jobs.parts import Adapter

MANIFEST = "manifest.json"


class FileEntry(BaseModel):
    """A file of a checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: int
    sha256: str


class CheckpointManifest(BaseModel):
    """A checkpoint's contents; `manifest.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = 1
    step: int
    policy_version: int
    adapter: Adapter
    model_fingerprint: str
    """The base model from which the policy started."""
    optimizer_steps: int
    weights_file: str
    weights_sha256: str
    """Hash of the weights' names, shapes and bits, computed by `backend.compute.weights.weights_sha256`."""
    files: dict[str, FileEntry]
    extra: dict[str, JsonValue] = {}
    """Data added by the job: its specification, random states, data position."""


class CheckpointWriter:
    """Collects the files of a checkpoint; see `writing`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        """Other code may also write files here, before `finish`."""

    def add_bytes(self, name: str, content: bytes) -> None:
        """Add a file."""
        (self.directory / name).write_bytes(content)

    def add_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Add a JSON file."""
        self.add_bytes(name, (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())

    def add_tensors(self, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Add a safetensors file."""
        save_file(dict(tensors), self.directory / name, metadata={"format": "pt"})

    def finish(self, **fields: Any) -> CheckpointManifest:
        """Sync every file, and write the manifest with these fields of `CheckpointManifest`."""
        files = {}
        for path in sorted(self.directory.iterdir()):
            files[path.name] = FileEntry(bytes=path.stat().st_size, sha256=_sha256(path))
            _flush(path)
        manifest = CheckpointManifest(files=files, **fields)
        self.add_bytes(MANIFEST, (manifest.model_dump_json(indent=2) + "\n").encode())
        _flush(self.directory / MANIFEST)
        return manifest


@contextlib.contextmanager
def writing(target: Path) -> Iterator[CheckpointWriter]:
    """Write a checkpoint into a new folder. It counts when its manifest, the last file, is there.

    Raises:
        StorageFullError: The disk is full; nothing is left behind.
        BlobsUnavailableError: It cannot be written now; neither.
    """
    with disk_answers(target):
        target.mkdir(parents=True)
        try:
            yield CheckpointWriter(target)
            # The folder as well: else the names of its files may be lost with the power.
            _flush(target)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise


class Checkpoint:
    """A checkpoint whose files were verified against its manifest."""

    def __init__(self, directory: Path, manifest: CheckpointManifest) -> None:
        self.directory = directory
        self.manifest = manifest

    @classmethod
    def open(cls, directory: str | Path) -> Checkpoint:
        """Verify every file.

        Raises:
            CheckpointCorruptError: A file differs from what was written; the message names it.
            BlobsUnavailableError: A file is missing, or cannot be read now.
        """
        folder = Path(directory)
        try:
            content = _read(folder / MANIFEST)
            manifest = CheckpointManifest.model_validate_json(content)
        except ValidationError as error:
            raise _corrupt(folder, f"{MANIFEST} cannot be read: {error}") from error
        for name, entry in manifest.files.items():
            if Path(name).name != name:
                raise _corrupt(folder, f"{MANIFEST} names a file outside the checkpoint: {name}")
            with _reading(folder / name) as path:
                size, sha256 = path.stat().st_size, _sha256(path)
            if size != entry.bytes:
                raise _corrupt(folder, f"{name} has {size} bytes instead of {entry.bytes}")
            if sha256 != entry.sha256:
                raise _corrupt(folder, f"{name} differs from the file that was written (wrong SHA-256)")
        return cls(folder, manifest)

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        """Read a safetensors file of the checkpoint."""
        tensors: dict[str, torch.Tensor] = tensors_from_bytes(_read(self._path(name)))
        return tensors

    def dtypes(self, name: str) -> set[torch.dtype]:
        """Return the floating-point types of a safetensors file's tensors."""
        on_disk = self.tensors_on_disk(name).values()
        return {tensor.dtype for tensor in on_disk if tensor.is_floating_point()}

    def tensors_on_disk(self, name: str) -> Mapping[str, torch.Tensor]:
        """Return the tensors of a safetensors file, read one by one, because all may exceed the memory."""
        return _OnDisk(self._path(name))

    def _path(self, name: str) -> Path:
        if name not in self.manifest.files:
            raise _corrupt(self.directory, f"{name} is not part of it")
        return self.directory / name


class _OnDisk(Mapping[str, torch.Tensor]):
    """The tensors of a safetensors file, each read on access."""

    def __init__(self, path: Path) -> None:
        with _reading(path):
            self._file: Any = safe_open(path, framework="pt")

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._file.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.keys())

    def __len__(self) -> int:
        return len(self._file.keys())


def _read(file: Path) -> bytes:
    with _reading(file):
        return file.read_bytes()


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[Path]:
    with disk_answers(file), missing_named(file):
        yield file


def _corrupt(folder: Path, what: str) -> CheckpointCorruptError:
    return CheckpointCorruptError(
        f"checkpoint {folder}: {what}",
        hint="resume from an earlier checkpoint, or restore this one from a backup",
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
