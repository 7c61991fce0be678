"""Fetching a published version, on the side of an engine host: by hash, in pieces, again after any break.

Nothing is kept that was not found to have its hash. Since bytes are named by their content, an interrupted
fetch goes on where it was, from any process that then offers them; what is unchanged is not fetched.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from backend.engines.spread.manifest import WeightManifest
from backend.engines.spread.weight_file import CHUNK_BYTES, Piece, WeightFile
from backend.errors import WeightsDamagedError, WeightsUnavailableError
from tinkergym.errors import NotFoundError, ServiceUnavailableError

_log = logging.getLogger(__name__)

Fetch = Callable[[Sequence[Piece]], bytes]
"""Returns the pieces' bytes, one after the other; raises ServiceUnavailableError if the source is gone, and
NotFoundError if it no longer has them."""

_TRIES = 3
"""Attempts to fetch the same bytes, whether the connection breaks or they are wrong."""


class WeightPull:
    """The versions that this process has fetched, the newest of each policy. Thread-safe."""

    def __init__(self, fetch: Fetch, folder: Path, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        """Fetch at most `chunk_bytes` at a time into files without names on this folder's file system."""
        self._fetch, self._folder, self._chunk_bytes = fetch, folder, chunk_bytes
        self._lock = threading.Lock()
        self._files: dict[str, WeightFile] = {}
        self._unfinished: dict[str, WeightFile] = {}
        self.fetched_bytes = 0
        """Since the start."""

    def pull(self, policy: str, manifest: WeightManifest) -> WeightFile:
        """Return the version's weights, fetching what is not here; one call per policy at a time.

        Raises:
            WeightsUnavailableError: The source is gone, and then the next call fetches only the rest; or it
                has a newer version.
            WeightsDamagedError: The bytes that arrive do not have their hash.
        """
        file = self._begun(policy, manifest)
        with self._lock:
            known = [*self._files.values(), *self._unfinished.values()]
        for other in known:
            file.take_from(other)
        for _ in range(_TRIES):
            if self._fill(file):
                break
            _log.warning("weights of %s arrived with wrong bytes", policy)
        else:
            raise WeightsDamagedError(
                f"the weights of {policy!r} arrived damaged {_TRIES} times",
                hint="they are not used; look for a broken network or memory on the way from the learner",
            )
        with self._lock:
            self._unfinished.pop(policy, None)
            self._files[policy] = file
        return file

    def forget(self, policy: str) -> None:
        """Free a policy's weights."""
        with self._lock:
            self._files.pop(policy, None)
            self._unfinished.pop(policy, None)

    def _begun(self, policy: str, manifest: WeightManifest) -> WeightFile:
        with self._lock:
            begun = self._unfinished.get(policy)
        if begun is not None and begun.manifest == manifest:
            return begun
        file = WeightFile(manifest, self._folder)
        if begun is not None:
            file.take_from(begun)
        with self._lock:
            self._unfinished[policy] = file
        return file

    def _fill(self, file: WeightFile) -> bool:
        """Fetch what is missing; returns whether all of it was right."""
        right = True
        for request in file.missing(self._chunk_bytes):
            data = memoryview(self._fetched(request))
            for piece in request:
                # The rest is kept even if one tensor was wrong: the next try fetches only what is missing.
                right &= file.write(piece, data[: piece.length])
                data = data[piece.length :]
        return right

    def _fetched(self, request: Sequence[Piece]) -> bytes:
        wanted = sum(piece.length for piece in request)
        problem = ""
        for _ in range(_TRIES):
            try:
                data = self._fetch(request)
            except (ServiceUnavailableError, NotFoundError) as error:
                problem = str(error)
                continue
            if len(data) == wanted:
                self.fetched_bytes += wanted
                return data
            problem = f"{len(data)} bytes of weights came instead of {wanted}"
        raise WeightsUnavailableError(
            f"weights cannot be fetched: {problem}", hint="they are asked for again"
        )
