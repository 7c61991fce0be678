"""Fingerprints of tasks: of files by their bytes, of anything else by its rows."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tinkergym.errors import InvalidRequestError

KEPT_FROM_BYTES = 64 << 20
"""Smaller files are hashed in each process, in less than a tenth of a second."""
_SETTLED_SECONDS = 3.0


def files_fingerprint(files: Sequence[Path], *, kept_in: Path | None = None, now: float | None = None) -> str:
    """Return the SHA-256 of the files' bytes, one after the other.

    Of large files it is kept on the machine, so that not each of its processes reads all bytes.

    Args:
        files: The files in order.
        kept_in: The folder for hashes of large files; None is `tinkergym/hashes` in the user's cache.
        now: The time in seconds; None asks the clock.
    """
    known = _kept(files, kept_in, now)
    with contextlib.suppress(OSError):
        if known is not None and re.fullmatch(r"[0-9a-f]{64}", found := known.read_text()):
            return found
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    if known is not None and known == _kept(files, kept_in, now):
        with contextlib.suppress(OSError):
            known.parent.mkdir(parents=True, exist_ok=True)
            draft = known.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
            draft.write_text(digest.hexdigest())
            draft.replace(known)
    return digest.hexdigest()


def _kept(files: Sequence[Path], folder: Path | None, now: float | None) -> Path | None:
    """Return where the hash of unchanged files is kept; None for small ones, and for those just written."""
    stats = [path.stat() for path in files]
    # The clock of a file system has ticks, within which a file may change again.
    just_written = (
        max((one.st_ctime for one in stats), default=0.0)
        > (time.time() if now is None else now) - _SETTLED_SECONDS
    )
    if just_written or sum(one.st_size for one in stats) < KEPT_FROM_BYTES:
        return None
    if folder is None:
        try:
            folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tinkergym" / "hashes"
        except RuntimeError:  # There is no home.
            return None
    made_of = [
        # The time of the last change of the inode, which no program can set back.
        [str(path.resolve()), one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns]
        for path, one in zip(files, stats, strict=True)
    ]
    return folder / hashlib.sha256(json.dumps(made_of).encode()).hexdigest()


def rows_fingerprint(rows: Iterable[Mapping[str, Any]], name: str) -> str:
    """Return the SHA-256 of the rows as JSON lines with sorted keys.

    Args:
        rows: The tasks in order.
        name: The source's name, for errors.

    Raises:
        InvalidRequestError: A row contains something without a stable JSON form.
    """
    digest = hashlib.sha256()
    for index, row in enumerate(rows):
        try:
            line = json.dumps(row, sort_keys=True, ensure_ascii=False, default=_plain)
        except (TypeError, ValueError) as error:
            raise InvalidRequestError(f"task {index} of {name} has no fingerprint: {error}") from error
        digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def row_hash(row: Mapping[str, Any]) -> bytes:
    """Return the start of the SHA-256 of one row; nulls by a name, which Parquet adds, do not count.

    Raises:
        TypeError: It contains something without a stable JSON form.
        ValueError: Likewise.
    """
    line = json.dumps(_present(row), sort_keys=True, ensure_ascii=False, default=_plain)
    return hashlib.sha256(line.encode("utf-8", "surrogatepass")).digest()[:12]


def _present(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _present(one) for key, one in value.items() if one is not None}
    return [_present(one) for one in value] if isinstance(value, list | tuple) else value


def _plain(value: object) -> object:
    if isinstance(value, bytes | bytearray):
        return {"bytes": hashlib.sha256(value).hexdigest()}
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"it contains a {type(value).__name__}")
