"""Where the contract of `Blobs` is checked: a folder, fsspec's memory, and S3 where it is installed."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from backend.store.folder_cache import FolderCache
from backend.store.local_blobs import LocalBlobs
from backend.store.object_blobs import ObjectBlobs
from tests.backend.s3_server import HAS_S3

PLACES = ["folder", "memory", *(["s3"] if HAS_S3 else [])]
_numbers = itertools.count()


def open_place(kind: str, tmp_path: Path, request, **cache):
    """Return empty blobs of a kind, and others that share its store as on another node."""
    if kind == "folder":
        return LocalBlobs(tmp_path / "blobs"), LocalBlobs(tmp_path / "blobs")
    url = f"memory://blobs-{next(_numbers)}" if kind == "memory" else request.getfixturevalue("bucket")
    settings = {"most_bytes": 2**30, **cache}
    return tuple(ObjectBlobs(url, FolderCache(tmp_path / node, **settings)) for node in ("here", "there"))


def fill(blobs, key, **files: bytes) -> None:
    """Write a folder with a manifest."""
    with blobs.filling(key) as folder:
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)
        listed = {
            name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in files.items()
        }
        (folder / "manifest.json").write_text(json.dumps({"files": listed}))


@contextmanager
def closed(folder: Path) -> Iterator[None]:
    """Take this process's right to a folder away, even root's."""
    mode, user = folder.stat().st_mode, os.geteuid()
    folder.chmod(0)
    if user == 0:
        os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(mode)


def break_disk_at(file: Path) -> None:
    """Let a file be one whose reading fails with EIO, as on a broken disk."""
    file.unlink()
    file.symlink_to("/proc/self/mem")
