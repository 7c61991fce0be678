"""The tensors of one version in a file without a name, which ends with the process that has it open.

The file's pages are the system's to keep in memory or to write out, so sending and receiving a version takes
no more memory of the process than one chunk.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import tempfile
from pathlib import Path

import torch

from backend.compute.weights import PolicyWeights
from backend.engines.spread.manifest import Sha256, WeightManifest
from backend.errors import WeightsDamagedError
from tinkergym.errors import NotFoundError
from tinkergym.schema.model import WireModel

CHUNK_BYTES = 8 << 20
"""The most bytes that one request for weights returns."""
_ALIGNMENT = 64
"""In bytes, a line of a processor's cache: tensors are read in place, so their numbers must be aligned."""


class Piece(WireModel):
    """A range of bytes of a tensor."""

    sha256: Sha256
    """The tensor's."""
    start: int
    length: int


class WeightFile:
    """Bytes by hash; a hash is held once the bytes were found to have it."""

    def __init__(self, manifest: WeightManifest, folder: Path) -> None:
        """Make room for a version's tensors, in a file of this folder's file system."""
        self.manifest = manifest
        self._places: dict[str, tuple[int, int]] = {}
        end = 0
        for sha256, size in manifest.sizes.items():
            self._places[sha256] = end, size
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            # Not a sparse file: on a full disk this raises, but a write to the map would end the process.
            os.posix_fallocate(file.fileno(), 0, max(end, 1))
            self._bytes = mmap.mmap(file.fileno(), 0)
        self._held: set[str] = set()
        self._filled = dict.fromkeys(self._places, 0)
        """How many bytes of each tensor have been written, from its beginning."""

    @classmethod
    def of(cls, weights: PolicyWeights, sha256: str, folder: Path) -> WeightFile:
        """Copy weights whose `weights_sha256` is known into a file."""
        raw = {name: _raw(tensor) for name, tensor in weights.tensors.items()}
        hashes = {name: hashlib.sha256(data).hexdigest() for name, data in raw.items()}
        file = cls(WeightManifest.of(weights, sha256, hashes), folder)
        for name, data in raw.items():
            if not file.holds(hashes[name]):
                file.write(Piece(sha256=hashes[name], start=0, length=len(data)), data)
        if not file.is_complete:
            raise WeightsDamagedError("a policy's weights changed while they were copied")
        return file

    def holds(self, sha256: str) -> bool:
        """Whether the tensor with this hash is here."""
        return sha256 in self._held

    @property
    def is_complete(self) -> bool:
        """Whether all tensors are here."""
        return self._held == self._places.keys()

    def missing(self, most: int = CHUNK_BYTES) -> list[list[Piece]]:
        """Return what is not here yet, in requests of at most `most` bytes.

        Small tensors share a request, and large ones take several. An empty tensor is a piece as well.
        """
        requests: list[list[Piece]] = [[]]
        room = most
        for sha256, (_, size) in self._places.items():
            start = self._filled[sha256]
            is_done = sha256 in self._held
            while not is_done:
                length = min(room, size - start)
                requests[-1].append(Piece(sha256=sha256, start=start, length=length))
                start, room = start + length, room - length
                is_done = start == size
                if not room:
                    requests.append([])
                    room = most
        return [request for request in requests if request]

    def read(self, piece: Piece) -> bytes:
        """Return a range of a tensor's bytes.

        Raises:
            NotFoundError: The tensor or the range is not here.
        """
        start, size = self._places.get(piece.sha256, (0, -1))
        if not self.holds(piece.sha256) or not 0 <= piece.start <= piece.start + piece.length <= size:
            raise NotFoundError(f"the bytes {piece.sha256[:12]} of a policy's weights are not here")
        return self._bytes[start + piece.start : start + piece.start + piece.length]

    def write(self, piece: Piece, data: bytes | memoryview) -> bool:
        """Continue a tensor; returns False if it is complete but its bytes are wrong, and begins it again."""
        start, size = self._places[piece.sha256]
        assert piece.start == self._filled[piece.sha256] and piece.length == len(data), "pieces come in order"
        with memoryview(self._bytes) as view:
            view[start + piece.start : start + piece.start + piece.length] = data
            self._filled[piece.sha256] += piece.length
            if self._filled[piece.sha256] < size:
                return True
            if hashlib.sha256(view[start : start + size]).hexdigest() == piece.sha256:
                self._held.add(piece.sha256)
                return True
        self._filled[piece.sha256] = 0
        return False

    def take_from(self, other: WeightFile) -> None:
        """Copy what another version has in common with this one; its bytes were checked when they came."""
        for sha256, (start, size) in self._places.items():
            if other.holds(sha256) and not self.holds(sha256):
                begin, _ = other._places[sha256]
                with memoryview(self._bytes) as view, memoryview(other._bytes) as source:
                    view[start : start + size] = source[begin : begin + size]
                self._held.add(sha256)

    def weights(self) -> PolicyWeights:
        """Return the version; its tensors share the file's pages, which stay as long as they are used."""
        assert self.is_complete, "all tensors are here"
        return self.manifest.weights(
            {
                entry.name: torch.frombuffer(
                    self._bytes,
                    dtype=entry.kind,
                    count=entry.size // entry.kind.itemsize,
                    offset=self._places[entry.sha256][0],
                ).reshape(entry.shape)
                if entry.size
                else torch.empty(entry.shape, dtype=entry.kind)
                for entry in self.manifest.tensors
            }
        )


def _raw(tensor: torch.Tensor) -> memoryview:
    whole = tensor.detach().cpu().contiguous()
    return whole.reshape(-1).view(torch.uint8).numpy().data if whole.numel() else memoryview(b"")
