"""Fingerprints of tasks: of files by their bytes, of anything else by its rows."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tinkergym.errors import InvalidRequestError


def files_fingerprint(files: Iterable[Path]) -> str:
    """Return the SHA-256 of the files' bytes, one after the other."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


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
