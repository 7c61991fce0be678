"""Bytes that an environment shows again, such as an image, are sent once: later frames name them by SHA-256.

The server sends bytes whose hash it has never sent, and otherwise only the hash. A client that lacks them
requests them. This module handles frames, not sockets or sessions.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping

from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.serving.wire_protocol import Frame, join_frame, split_frame
from tinkergym.serving.wire_values import Blob

LEAST_BYTES = 256
"""Shorter ones are not worth a hash."""
_MOST_SENT = 100_000
_MOST_KEPT_BYTES = 64 * 2**20


class SentBlobs:
    """The newest hashes that a server has sent. Thread-safe."""

    def __init__(self, most: int = _MOST_SENT) -> None:
        self._lock = threading.Lock()
        self._hashes: BoundedDict[str, None] = BoundedDict(most)

    def note(self, sha256: str) -> bool:
        """Record that it is sent; return whether it was sent before."""
        with self._lock:
            known = sha256 in self._hashes
            self._hashes[sha256] = None
            return known


class SeenBlobs:
    """Bytes that this process received, by hash, up to a size; the oldest are dropped. Thread-safe."""

    def __init__(self, most_bytes: int = _MOST_KEPT_BYTES) -> None:
        self._lock = threading.Lock()
        self._kept: BoundedDict[str, bytes] = BoundedDict(most_bytes, size=len)

    def find(self, hashes: list[str]) -> dict[str, bytes]:
        """Return the bytes that are available."""
        with self._lock:
            return {sha256: self._kept[sha256] for sha256 in hashes if sha256 in self._kept}

    def add(self, blobs: Mapping[str, Blob]) -> None:
        """Keep some."""
        with self._lock:
            for sha256, blob in blobs.items():
                if sha256 not in self._kept:
                    self._kept[sha256] = bytes(blob)

    def forget(self) -> None:
        """Drop all, as a new process has none."""
        with self._lock:
            self._kept.clear()


SEEN = SeenBlobs()
"""For all environments that this process plays: those of a group show the same images."""


def named(frame: Frame, sent: SentBlobs) -> tuple[Frame, dict[str, Blob]]:
    """Return a frame with hashes instead of bytes sent before, and all its bytes by hash."""
    if isinstance(frame, str):
        return frame, {}
    head, blobs = split_frame(frame)
    shown: dict[str, Blob] = {}
    before = False
    for number, blob in enumerate(blobs):
        if len(blob) >= LEAST_BYTES:
            sha256 = hashlib.sha256(blob).hexdigest()
            if sent.note(sha256) or sha256 in shown:
                head["$blobs"][number], before = sha256, True
            shown[sha256] = blob
    if not before:
        return frame, shown
    kept = [blob for blob, entry in zip(blobs, head["$blobs"], strict=True) if type(entry) is int]
    return join_frame(head, kept), shown


def contents(frame: Frame) -> tuple[list[str], dict[str, Blob]]:
    """Return the hashes in a frame, and the bytes that later frames may refer to, by hash.

    Raises:
        ValueError: It is not a valid frame.
        TypeError: Its JSON is not an object.
    """
    if isinstance(frame, str):
        return [], {}
    head, blobs = split_frame(frame)
    hashes = list(dict.fromkeys(entry for entry in head["$blobs"] if type(entry) is str))
    return hashes, {hashlib.sha256(blob).hexdigest(): blob for blob in blobs if len(blob) >= LEAST_BYTES}
