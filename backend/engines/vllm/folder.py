"""Private folders of vLLM engines, gone when their owner is: for weights in memory, if they fit."""

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
"""Full policies for which there must be room."""


def private_folder(policy_bytes: int | None = None) -> Path:
    """Make a folder that only this user can read, and remove those that killed processes left behind.

    Args:
        policy_bytes: What a full policy takes, if weights are put there: the folder is shared memory if
            several of them fit. Without it the folder is on the disk.
    """
    disk = Path(tempfile.gettempdir())
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
