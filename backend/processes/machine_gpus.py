"""The GPUs of this machine that this process may use, and their memory; without torch."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

_QUESTION = ("nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits")
_SECONDS = 20.0
_MIB = 2**20
READ_SECONDS = 30.0
"""How often GPUs are read that are not known: nvidia-smi may take long to fail."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


def machine_gpus(
    environ: Mapping[str, str] = os.environ, ask: Callable[[], str | None] | None = None
) -> dict[str, int]:
    """Return the memory in bytes of each GPU, by what `CUDA_VISIBLE_DEVICES` calls it.

    Empty where torch has no CUDA, whatever the machine has.

    Args:
        environ: With `CUDA_VISIBLE_DEVICES`, only its GPUs, in its order.
        ask: Returns nvidia-smi's answer; None if it failed.
    """
    return known_gpus(environ, ask) or {}


def known_gpus(
    environ: Mapping[str, str] = os.environ, ask: Callable[[], str | None] | None = None
) -> dict[str, int] | None:
    """Return what `machine_gpus` does, but None if nvidia-smi failed: there may be GPUs."""
    if ask is None and not _torch_has_cuda():
        return {}
    answer = (ask or _answer)()
    if answer is None:
        return None
    found: dict[str, int] = {}
    names: dict[str, str] = {}
    for line in answer.splitlines():
        with suppress(ValueError):
            index, uuid, size = (word.strip() for word in line.split(","))
            found[index] = int(size) * _MIB
            names[uuid] = index
    if VISIBLE not in environ:
        return found
    # CUDA stops at the first name that it does not know.
    visible: dict[str, int] = {}
    for name in environ[VISIBLE].split(","):
        index = names.get(name.strip(), name.strip())
        if index not in found:
            break
        visible[index] = found[index]
    return visible


class AskedGpus:
    """Asks for `known_gpus` until they are known, and remembers them; empty before."""

    def __init__(
        self,
        read: Callable[[], dict[str, int] | None] = known_gpus,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._monotonic = read, monotonic
        self._found: dict[str, int] | None = None
        self._read_at = -READ_SECONDS

    def __call__(self) -> dict[str, int]:
        """Return the memory in bytes of each GPU, by what `CUDA_VISIBLE_DEVICES` calls it."""
        if self._found is None and (now := self._monotonic()) - self._read_at >= READ_SECONDS:
            self._read_at = now
            self._found = self._read()
        return self._found or {}


def _answer() -> str | None:
    try:
        done = subprocess.run(_QUESTION, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return None
    except OSError:  # There is no nvidia-smi, and no GPU.
        return ""
    return done.stdout if done.returncode == 0 else None


def _torch_has_cuda() -> bool:
    with suppress(PackageNotFoundError):
        return not version("torch").endswith("+cpu")
    return False
