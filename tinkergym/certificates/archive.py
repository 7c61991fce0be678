"""Read a bundle that anybody may have packed: plain files with unique names, and a bounded number of bytes.

Nothing is written outside a temporary file. Files are read line by line; of the ledger, only
recorded lines are kept.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from tinkergym.errors import InvalidRequestError

_EXTENDED = {"path", "size"}
"""What the header of a file with a long name or of more than 8 GiB has. Others make readers disagree."""
_LONGEST_NAME = 1000
_GZIP = b"\x1f\x8b"
_GZIP_WINDOW = 31  # zlib's largest window, and a gzip header.


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """How much of a file is read that anybody may have made."""

    most_bytes: int = 64 * 2**20
    """The largest certificate, manifest or line."""
    most_growth: int = 100
    """A compressed bundle may unpack to this many times its size, and `most_bytes` more. Real ones: up to
    20."""
    most_files: int = 200_000
    """The most files in a bundle: a run has one per step, and those of its checkpoints."""
    most_objects: int = 150_000
    """The most objects in a certificate, about those of a run of 25,000 steps. Each wrong one costs
    memory."""
    chunk_bytes: int = 2**20
    """Bytes that are read at once."""


LIMITS = ReadLimits()


class BundleFiles:
    """The files of an archive by name."""

    def __init__(self, file: IO[bytes], places: dict[str, tuple[int, int]], limits: ReadLimits) -> None:
        self._file, self._places, self._limits = file, places, limits

    @property
    def names(self) -> set[str]:
        """All names."""
        return set(self._places)

    def size(self, name: str) -> int:
        """Return a file's size."""
        return self._places[name][1]

    def sha256(self, name: str) -> str:
        """Return a file's hash."""
        digest = hashlib.sha256()
        for chunk in self._chunks(name):
            digest.update(chunk)
        return digest.hexdigest()

    def body(self, name: str) -> bytes:
        """Return a file.

        Raises:
            InvalidRequestError: It is larger than `most_bytes`.
        """
        if self.size(name) > (most := self._limits.most_bytes):
            raise unreadable(f"{name} has {self.size(name):,} bytes; at most {most:,} are read")
        return b"".join(self._chunks(name))

    def head(self, name: str, most: int) -> bytes:
        """Return the beginning of a file."""
        start, size = self._places[name]
        self._file.seek(start)
        return self._file.read(min(most, size))

    def lines(self, name: str) -> Iterator[bytes]:
        """Yield a file's lines; none if the file is missing.

        Raises:
            InvalidRequestError: One is longer than `most_bytes`, or the last one is cut.
        """
        if name not in self._places:
            return
        rest = bytearray()
        for chunk in self._chunks(name):
            *whole, last = chunk.split(b"\n")
            for line in whole:
                yield bytes(rest + line)
                rest.clear()
            rest += last
            if len(rest) > (most := self._limits.most_bytes):
                raise unreadable(f"{name} has a line of more than {most:,} bytes")
        if rest:
            raise unreadable(f"{name} ends within a line")

    def _chunks(self, name: str) -> Iterator[bytes]:
        start, size = self._places[name]
        chunk = self._limits.chunk_bytes
        for offset in range(0, size, chunk):
            # Between two chunks another file may be read.
            self._file.seek(start + offset)
            yield self._file.read(min(chunk, size - offset))


@contextmanager
def reading_bundle(path: Path, limits: ReadLimits = LIMITS) -> Iterator[BundleFiles]:
    """Open a bundle: a tar archive, or one compressed with gzip.

    Raises:
        InvalidRequestError: It has members that are not plain files with unique relative names, bytes after
            its end, or is too large.
        OSError, tarfile.TarError, zlib.error: It is not such an archive, or it is damaged.
    """
    with path.open("rb") as file:
        packed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        if not packed:
            yield BundleFiles(file, _read_places(file, limits), limits)
            return
        with tempfile.TemporaryFile() as unpacked:
            most = limits.most_bytes + limits.most_growth * path.stat().st_size
            _unpack(file, unpacked, most=most, chunk_bytes=limits.chunk_bytes)
            unpacked.seek(0)
            yield BundleFiles(unpacked, _read_places(unpacked, limits), limits)


def unreadable(why: str) -> InvalidRequestError:
    """Return the error for a file that is no certificate or bundle of ours."""
    return InvalidRequestError(why, hint="name what job.certificate() wrote", field="path")


def _unpack(packed: IO[bytes], target: IO[bytes], *, most: int, chunk_bytes: int) -> None:
    stream, left = zlib.decompressobj(_GZIP_WINDOW), most
    while not stream.eof:
        waiting = stream.unconsumed_tail or packed.read(chunk_bytes)
        if not waiting:
            raise EOFError("the compressed archive is cut")
        body = stream.decompress(waiting, chunk_bytes)
        left -= len(body)
        if left < 0:
            raise unreadable(f"the archive unpacks to more than {most:,} bytes")
        target.write(body)
    if stream.unused_data or packed.read(1):
        raise unreadable("the archive is followed by other bytes")


def _read_places(file: IO[bytes], limits: ReadLimits) -> dict[str, tuple[int, int]]:
    try:
        return _places(file, limits)
    except (ValueError, OverflowError) as error:  # tarfile's own, from extended headers of sparse files.
        raise unreadable(f"the archive has an invalid header: {error!s:.200}") from error


def _places(file: IO[bytes], limits: ReadLimits) -> dict[str, tuple[int, int]]:
    """Return where each file begins in an archive, and its size."""
    end = file.seek(0, io.SEEK_END)
    file.seek(0)
    places: dict[str, tuple[int, int]] = {}
    # A header may announce a name of any length.
    with tarfile.open(fileobj=cast(IO[bytes], _Short(file, limits.chunk_bytes)), mode="r:") as archive:
        # Without this it keeps every header.
        while (entry := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]
            fault = _fault(entry, places)
            if not fault and entry.offset_data + entry.size > end:
                fault = "is cut"
            if fault:
                raise unreadable(f"the archive's member {entry.name[:200]!r} {fault}")
            places[entry.name] = entry.offset_data, entry.size
            if len(places) > limits.most_files:
                raise unreadable(f"the archive has more than {limits.most_files:,} files")
        file.seek(archive.offset)
        while chunk := file.read(limits.chunk_bytes):
            if chunk.strip(b"\0"):
                raise unreadable("the archive is followed by other bytes")
    return places


def _fault(entry: tarfile.TarInfo, known: dict[str, tuple[int, int]]) -> str:
    if entry.type != tarfile.REGTYPE or entry.issparse():
        return "is not a plain file"
    if others := sorted(entry.pax_headers.keys() - _EXTENDED):
        return f"has the extended header {others[0][:200]!r}"
    if entry.mode & 0o7000:
        return f"has the mode {entry.mode:o}"
    if entry.size < 0 or len(entry.name) > _LONGEST_NAME:
        return "has an impossible size or name"
    path = PurePosixPath(entry.name)
    if path.is_absolute() or str(path) != entry.name or ".." in path.parts or not entry.name.isprintable():
        return "does not have a plain relative name"
    return "is there twice" if entry.name in known else ""


class _Short:
    """A file of which at most `chunk_bytes` are read at once."""

    def __init__(self, file: IO[bytes], chunk_bytes: int) -> None:
        self._file, self._chunk_bytes = file, chunk_bytes
        self.seek, self.tell = file.seek, file.tell

    def read(self, count: int) -> bytes:
        """Read `count` bytes.

        Raises:
            InvalidRequestError: That is more than a header of ours has.
        """
        if count > self._chunk_bytes:
            raise unreadable(f"the archive has a header of {count:,} bytes")
        return self._file.read(count)
