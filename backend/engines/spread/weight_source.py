"""The published versions that engine hosts may fetch, on the learner's side."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from backend.compute.weights import PolicyWeights
from backend.engines.spread.manifest import WeightManifest
from backend.engines.spread.weight_file import CHUNK_BYTES, Piece, WeightFile
from tinkergym.errors import InvalidRequestError, NotFoundError


class WeightSource:
    """The newest version of each policy. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Keep the weights in files without names on this folder's file system."""
        self._folder = folder
        self._lock = threading.Lock()
        self._files: dict[str, WeightFile] = {}

    def offer(self, policy: str, weights: PolicyWeights, sha256: str) -> WeightManifest:
        """Replace a policy's version; who fetches the older one gets NotFoundError from now on."""
        file = WeightFile.of(weights, sha256, self._folder)
        with self._lock:
            self._files[policy] = file
        return file.manifest

    def withdraw(self, policy: str) -> None:
        """Free a policy's weights."""
        with self._lock:
            self._files.pop(policy, None)

    def read(self, wanted: Sequence[Piece]) -> bytes:
        """Return the pieces' bytes, one after the other.

        Raises:
            NotFoundError: A newer version has replaced them.
            InvalidRequestError: They are more than one request may ask for.
        """
        if sum(piece.length for piece in wanted) > CHUNK_BYTES:
            raise InvalidRequestError(f"one request for weights returns at most {CHUNK_BYTES} bytes")
        with self._lock:
            files = list(self._files.values())
        return b"".join(_holder(files, piece.sha256).read(piece) for piece in wanted)


def _holder(files: Sequence[WeightFile], sha256: str) -> WeightFile:
    for file in files:
        if file.holds(sha256):
            return file
    raise NotFoundError(
        f"the weights {sha256[:12]} are no longer published", hint="fetch the policy's newest version"
    )
