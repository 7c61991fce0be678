"""Serves a group's calls in a rank's process: the first rank hears them and broadcasts them to the others."""

from __future__ import annotations

import contextlib
import ctypes
import pickle
from multiprocessing.connection import Connection
from typing import Any

import torch.distributed as dist

from backend.learner.parallel.rank import Rank, RankOptions, failed_on_disk
from tinkergym.errors import TinkerGymError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Constant for `mallopt`, from glibc's malloc.h."""
_LARGE_BYTES = 4 * 2**20
"""Smaller values would save more memory, but cost time: new blocks are filled with zeros."""
_SPARE_BYTES = 256 * 2**20
"""Limit for small blocks that are kept."""


def serve_rank(number: int, options: RankOptions, pipe: Connection) -> None:
    """Process (call number, method, args, kwargs) messages until the first rank's pipe ends.

    Replies are (call number, True, value) or (call number, False, error); the first, for readiness, has
    number 0. Only the first rank's value is sent. Plain pickle is used instead of multiprocessing's, with
    which torch moves tensors into shared memory: a model may not fit there, and every tensor would need a
    file descriptor.
    """
    _give_large_blocks_back()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            rank = Rank(number, options)
        except TinkerGymError as error:
            pipe.send_bytes(pickle.dumps((0, False, error)))
            return
        pipe.send_bytes(pickle.dumps((0, True, None)))
        while (message := _next_call(number, rank, pipe)) is not None:
            call, name, args, kwargs = pickle.loads(message)
            worked, value = _outcome(rank, name, args, kwargs)
            pipe.send_bytes(pickle.dumps((call, worked, None if worked and number else value)))


def _next_call(number: int, rank: Rank, pipe: Connection) -> bytes | None:
    """Return the next call on every rank; None if the group has ended."""
    # None ends all ranks: the first one's pipe has ended.
    told: list[bytes | None] = [None]
    if number == 0:
        with contextlib.suppress(EOFError, OSError):
            told = [pipe.recv_bytes()]
    # With an error another rank is gone, and the group knows it.
    with contextlib.suppress(RuntimeError):
        dist.broadcast_object_list(told, src=0, group=rank.calls)
        return told[0]
    return None


def _outcome(rank: Rank, name: str, args: Any, kwargs: Any) -> tuple[bool, Any]:
    try:
        found = getattr(rank, name)
        return True, found(*args, **kwargs) if callable(found) else found
    except TinkerGymError as error:
        return False, error
    except OSError as error:
        return False, failed_on_disk(error)
    except Exception as error:
        # One that can certainly be pickled.
        return False, RuntimeError(f"{type(error).__name__}: {error}")


def _give_large_blocks_back() -> None:
    """From now on make the C library return the memory of large tensors immediately.

    glibc otherwise keeps ever larger blocks, and nothing new fits between those left by the layers of a
    divided policy: the total then was that of a complete one.
    """
    with contextlib.suppress(OSError, AttributeError):  # a different C library
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _SPARE_BYTES)
