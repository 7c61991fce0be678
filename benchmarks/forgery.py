"""Forged bundles: one changed field, hashed again as a forger would."""

from __future__ import annotations

import copy
import fnmatch
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tinkergym.certificates import verify
from tinkergym.certificates.checks import checks_of, sealed
from tinkergym.certificates.page import page
from tinkergym.errors import TinkerGymError
from tinkergym.schema.certificate import Certificate

UNCONTRADICTED = (
    "job.packs.*",
    "job.client_packs.*",
    "service_version",
    "made_at",
    "attempts.*.worker_id",
    "attempts.*.versions.*",
    "attempts.*.place.*",
    "publishes.*.weights_sha256",
    "agreements.*.mean",
    "agreements.*.largest",
    "agreements.*.tokens",
    "adapters.*.norm",
    "adapters.*.tokens",
    "steps.*.records_sha256",
    "checkpoints.*.view.files.*",
    "checkpoints.*.manifest_sha256",
)
"""Patterns of facts of which a bundle may have no second record; docs/guides/certificates.md names them. Of
publishes and checkpoints, those of the newest are contradicted; of agreements, those on episodes."""

Field = tuple[str | int, ...]


def is_listed(field: Field, patterns: Iterable[str] = UNCONTRADICTED) -> bool:
    """Whether a field is one of those that nothing in a bundle need contradict."""
    name = ".".join("*" if isinstance(key, int) else key for key in field)
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def one_field_changes(
    document: Mapping[str, Any], *, smaller: bool = False
) -> Iterator[tuple[Field, Certificate | None]]:
    """Yield each field of a certificate's facts, and the certificate with another value of it.

    The certificate is None if such a value is refused as it is read.

    Args:
        document: The certificate's JSON.
        smaller: Change numbers only, to one less; otherwise every value, numbers to one more.
    """
    for field, value in _leaves(document["facts"]):
        new = _other(value, smaller=smaller)
        if new is None:
            continue
        changed = copy.deepcopy(dict(document))
        holder = changed["facts"]
        for key in field[:-1]:
            holder = holder[key]
        holder[field[-1]] = new
        try:
            yield field, Certificate.model_validate(changed)
        except ValueError:
            yield field, None


def detects(
    files: Mapping[str, bytes], certificate: Certificate | None, path: Path, key: str | None = None
) -> bool:
    """Whether `verify` finds fault with a bundle that has another certificate.

    Args:
        files: The bundle's other files, by name.
        certificate: The changed certificate.
        path: Where the bundle is written.
        key: The operator's public key; None checks no signature.
    """
    if certificate is None:
        return True
    try:
        return not verify(packed(resealed(certificate, files), path), key=key).ok
    except TinkerGymError:
        return True


def resealed(certificate: Certificate, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Put a certificate into a bundle's files, with its checks, hashes and page made again."""
    listed = {
        name: {"sha256": hashlib.sha256(body).hexdigest(), "bytes": len(body)}
        for name, body in files.items()
        if not name.startswith("certificate.")
    }
    changed = {"checks": checks_of(certificate.facts), "files": listed}
    made = sealed(Certificate.model_validate({**certificate.model_dump(), **changed}))
    return {
        **files,
        "certificate.json": made.model_dump_json(indent=1).encode(),
        "certificate.html": page(made).encode(),
    }


def unpacked(path: Path) -> dict[str, bytes]:
    """Return the files of an archive by name."""
    with tarfile.open(path) as archive:
        found = {entry.name: archive.extractfile(entry) for entry in archive}
        return {name: file.read() for name, file in found.items() if file is not None}


def packed(files: Mapping[str, bytes | None], path: Path) -> Path:
    """Write an archive of files by name; None leaves one out."""
    return with_members([member(name, body) for name, body in files.items() if body is not None], path)


def member(name: str, body: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """Return a member of an archive, with any fields of its header."""
    entry = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(entry, field, value)
    entry.size = len(body)
    return entry, body


def with_members(members: Iterable[tuple[tarfile.TarInfo, bytes]], path: Path) -> Path:
    """Write an archive of members."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for entry, body in members:
            archive.addfile(entry, io.BytesIO(body))
    return path


def _leaves(value: Any, field: Field = ()) -> Iterator[tuple[Field, Any]]:
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(one, (*field, key))
    elif value is not None:
        yield field, value


def _other(value: Any, *, smaller: bool) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value - 1 if smaller else value + 1
    if smaller:
        return None
    return not value if isinstance(value, bool) else "0" * len(value) if len(value) == 64 else value + "x"


def certificate_of(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the JSON of a bundle's certificate."""
    found: dict[str, Any] = json.loads(files["certificate.json"])
    return found
