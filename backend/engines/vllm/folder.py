"""Private folders of vLLM engines, removed after their owner: for weights in memory, if they fit."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

_PREFIX = "tinkergym-vllm-"
_MEMORY = Path("/dev/shm")
_COPIES = 4
"""Number of full policies for which there must be space."""


def private_folder(policy_bytes: int | None = None, disk: Path | None = None) -> Path:
    """Create a folder that only this user can read, and remove those of killed processes.

    Args:
        policy_bytes: The size of a full policy, if the folder is for weights: it is in shared memory if
            several of them fit. None creates it on disk.
        disk: The folder on disk; None means the system's temporary folder.
    """
    disk = disk or Path(tempfile.gettempdir())
    for place in {disk, _MEMORY}:
        for left in place.glob(f"{_PREFIX}*"):
            owner = left.name.removeprefix(_PREFIX).partition("-")[0]
            with suppress(OSError):
                if (
                    owner.isdigit()
                    and not psutil.pid_exists(int(owner))
                    and left.stat().st_uid == os.getuid()
                ):
                    shutil.rmtree(left, ignore_errors=True)
    fits = (
        policy_bytes is not None
        and os.access(_MEMORY, os.W_OK)
        and shutil.disk_usage(_MEMORY).free > _COPIES * policy_bytes
    )
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_MEMORY if fits else disk))
