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
from pathlib import Path, PurePosixPath
from typing import IO, cast

from tinkergym.errors import InvalidDataError

MOST_BYTES = 64 * 2**20
"""The largest certificate, manifest or line that is read."""

MOST_GROWTH = 100
"""A compressed bundle may unpack to this many times its size, and `MOST_BYTES` more. Real ones: up to 20."""

MOST_FILES = 200_000
"""The most files in a bundle: a run has one per step, and those of its checkpoints."""

_CHUNK = 2**20
_EXTENDED = {"path", "size"}
"""What the header of a file with a long name or of more than 8 GiB has. Others make readers disagree."""
_GZIP = b"\x1f\x8b"
_GZIP_WINDOW = 31  # zlib's largest window, and a gzip header.


class BundleFiles:
    """The files of an archive by name."""

    def __init__(self, file: IO[bytes], places: dict[str, tuple[int, int]]) -> None:
        self._file, self._places = file, places

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
            InvalidDataError: It is larger than `MOST_BYTES`.
        """
        if self.size(name) > MOST_BYTES:
            raise unreadable(f"{name} has {self.size(name):,} bytes; at most {MOST_BYTES:,} are read")
        return b"".join(self._chunks(name))

    def head(self, name: str, most: int) -> bytes:
        """Return the beginning of a file."""
        start, size = self._places[name]
        self._file.seek(start)
        return self._file.read(min(most, size))

    def lines(self, name: str) -> Iterator[bytes]:
        """Yield a file's lines; none if the file is missing.

        Raises:
            InvalidDataError: One is longer than `MOST_BYTES`, or the last one is cut.
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
            if len(rest) > MOST_BYTES:
                raise unreadable(f"{name} has a line of more than {MOST_BYTES:,} bytes")
        if rest:
            raise unreadable(f"{name} ends within a line")

    def _chunks(self, name: str) -> Iterator[bytes]:
        start, size = self._places[name]
        for offset in range(0, size, _CHUNK):
            # Between two chunks another file may be read.
            self._file.seek(start + offset)
            yield self._file.read(min(_CHUNK, size - offset))


@contextmanager
def reading_bundle(path: Path) -> Iterator[BundleFiles]:
    """Open a bundle: a tar archive, or one compressed with gzip.

    Raises:
        InvalidDataError: It has members that are not plain files with unique relative names, bytes after its
            end, or is too large.
        OSError, tarfile.TarError, zlib.error: It is not such an archive, or it is damaged.
    """
    with path.open("rb") as file:
        packed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        if not packed:
            yield BundleFiles(file, _read_places(file))
            return
        with tempfile.TemporaryFile() as unpacked:
            _unpack(file, unpacked, most=MOST_BYTES + MOST_GROWTH * path.stat().st_size)
            unpacked.seek(0)
            yield BundleFiles(unpacked, _read_places(unpacked))


def unreadable(why: str) -> InvalidDataError:
    """Return the error for a file that is no certificate or bundle of ours."""
    return InvalidDataError(why, hint="name what job.certificate() wrote", field="path")


def _unpack(packed: IO[bytes], target: IO[bytes], *, most: int) -> None:
    stream, left = zlib.decompressobj(_GZIP_WINDOW), most
    while not stream.eof:
        waiting = stream.unconsumed_tail or packed.read(_CHUNK)
        if not waiting:
            raise EOFError("the compressed archive is cut")
        body = stream.decompress(waiting, _CHUNK)
        left -= len(body)
        if left < 0:
            raise unreadable(f"the archive unpacks to more than {most:,} bytes")
        target.write(body)
    if stream.unused_data or packed.read(1):
        raise unreadable("the archive is followed by other bytes")


def _read_places(file: IO[bytes]) -> dict[str, tuple[int, int]]:
    try:
        return _places(file)
    except (ValueError, OverflowError) as error:  # tarfile's own, from extended headers of sparse files.
        raise unreadable(f"the archive has an invalid header: {error!s:.200}") from error


def _places(file: IO[bytes]) -> dict[str, tuple[int, int]]:
    """Return where each file begins in an archive, and its size."""
    end = file.seek(0, io.SEEK_END)
    file.seek(0)
    places: dict[str, tuple[int, int]] = {}
    # A header may announce a name of any length.
    with tarfile.open(fileobj=cast(IO[bytes], _Short(file)), mode="r:") as archive:
        # Without this it keeps every header.
        while (entry := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]
            fault = _fault(entry, places)
            if not fault and entry.offset_data + entry.size > end:
                fault = "is cut"
            if fault:
                raise unreadable(f"the archive's member {entry.name[:200]!r} {fault}")
            places[entry.name] = entry.offset_data, entry.size
            if len(places) > MOST_FILES:
                raise unreadable(f"the archive has more than {MOST_FILES:,} files")
        file.seek(archive.offset)
        while chunk := file.read(_CHUNK):
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
    path = PurePosixPath(entry.name)
    if path.is_absolute() or str(path) != entry.name or ".." in path.parts or not entry.name.isprintable():
        return "does not have a plain relative name"
    return "is there twice" if entry.name in known else ""


class _Short:
    """A file of which at most `_CHUNK` bytes are read at once."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, count: int) -> bytes:
        """Read `count` bytes.

        Raises:
            InvalidDataError: That is more than a header of ours has.
        """
        if count > _CHUNK:
            raise unreadable(f"the archive has a header of {count:,} bytes")
        return self._file.read(count)
