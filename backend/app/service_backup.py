"""`python -m backend.app.service_backup`: copy a service, database and blobs, to another place, or back.

The blobs come first, then the database, then the blobs that were added meanwhile. So whatever the copied
database names is there, while the service runs. `backup.json` is written last.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from backend.app import data_folder
from backend.config import ServiceConfig, load_config
from backend.errors import BlobsUnavailableError, ConfigError
from backend.private_folder import private_files
from backend.store import database_copy
from backend.store.blobs import BlobMissingError, Blobs
from backend.store.collector import OWNER
from backend.store.place import database_file
from backend.store.store import Store
from tinkergym import __version__
from tinkergym.errors import TinkerGymError

_FOLDERS = ("jobs", "uploads", "images")
_REPORT = "backup.json"
_MOST_ROUNDS = 5
"""A service that removes blobs faster than they are copied is named after this many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupReport:
    """What a backup contains; `backup.json`."""

    database: str
    """The name of the file with the database's copy; empty until the first backup is complete."""
    identity: str
    """Of the database; see `Store.identity`."""
    blobs: int = 0
    bytes: int = 0
    version: str = __version__
    made_at: float = 0.0
    format: int = 1


def back_up(config: ServiceConfig, target: Blobs) -> BackupReport:
    """Copy a service's database, blobs and keys; a second backup to the same target copies what is new.

    Raises:
        ConfigError: There is no database, or the target has something else.
        ServiceUnavailableError: The service removes blobs faster than they are copied.
        StorageFullError: The target is full.
    """
    before = _report(target)
    with closing(_existing(config)) as store:
        identity = store.identity()
    if before is None and target.files():
        raise ConfigError(
            f"{target.where('')} is not empty, and has no backup", hint="choose a new folder", field="TARGET"
        )
    if before is not None and before.identity != identity:
        raise ConfigError(
            f"{target.where('')} has the backup of another service",
            hint="choose a new folder",
            field="TARGET",
        )
    if before is None:  # If this one is interrupted, the next continues it.
        _write_report(target, BackupReport(database="", identity=identity))
    _copy_blobs(config, target)
    name = f"database-{time.time_ns()}"
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(_MOST_ROUNDS):
            dump = Path(folder, name)
            dump.unlink(missing_ok=True)
            named = database_copy.dump(config.store_url, dump)
            there = _copy_blobs(config, target)
            lacking = {f"jobs/{key}" for key in named} - there.keys()
            if not lacking:
                break
        else:
            raise BlobsUnavailableError(
                f"{len(lacking)} files of checkpoints cannot be copied, such as {min(lacking)}",
                hint="stop the service, then back up again; if that does not help, they are missing",
            )
        target.put_file(name, dump)
    _copy_keys(config, target)
    report = BackupReport(
        database=name,
        identity=identity,
        blobs=len(there),
        bytes=sum(there.values()),
        made_at=time.time(),
    )
    _write_report(target, report)
    _prune(target, there, name)
    return report


def restore(config: ServiceConfig, source: Blobs) -> BackupReport:
    """Copy a backup into a new data folder, and into the blob store that the settings name.

    Raises:
        ConfigError: There is no complete backup, the data folder has a database already or is in use, or the
            blob store has the blobs of a service.
        StorageFullError: The disk or the bucket is full.
    """
    report = _report(source)
    if report is None or not report.database:
        raise ConfigError(
            f"{source.where('')} has no complete backup",
            hint="name the TARGET of `tinkergym backup`",
            field="SOURCE",
        )
    with data_folder.claimed(config):
        database_copy.require_none(config.store_url)
        if config.job_files.has(OWNER):
            raise ConfigError(
                f"{config.job_files.where('')} has the files of a service",
                hint=f"choose other `blobs`; if that service is gone, remove {config.job_files.where(OWNER)}",
                field="blobs",
            )
        copied: dict[str, int] = {}
        for name in _FOLDERS:
            copied |= {
                f"{name}/{key}": size
                for key, size in _mirror(source.below(name), config.blobs_in(name)).items()
            }
        if (len(copied), sum(copied.values())) != (report.blobs, report.bytes):
            raise ConfigError(
                f"{source.where('')} has {len(copied)} blobs with {sum(copied.values())} bytes instead of "
                f"{report.blobs} with {report.bytes}",
                hint="the backup is incomplete; use another",
                field="SOURCE",
            )
        for key, path in _key_files(config, source).items():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.write_bytes(source.get(f"keys/{key}"))
            path.chmod(0o600)
        with source.reading(report.database) as dump:
            database_copy.restore(dump, config.store_url)
    return report


def _existing(config: ServiceConfig) -> Store:
    file = database_file(config.store_url)
    if file is not None and not file.exists():  # Opening it would create it.
        raise ConfigError(
            f"there is no database {file}", hint="name the service's data_dir", field="database_url"
        )
    return Store.open(config.store_url)


def _copy_blobs(config: ServiceConfig, target: Blobs) -> dict[str, int]:
    """Copy what the target lacks; return the size of each blob of the service, by its key in the target."""
    found: dict[str, int] = {}
    for name in _FOLDERS:
        copied = _mirror(config.blobs_in(name), target.below(name))
        found |= {f"{name}/{key}": size for key, size in copied.items()}
    return found


def _mirror(source: Blobs, target: Blobs) -> dict[str, int]:
    """Copy what the target lacks; keys are immutable, so the same key and size is the same blob."""
    there = {blob.key: blob.bytes for blob in target.files()}
    found = {}
    for blob in source.files():
        if there.get(blob.key) != blob.bytes:
            try:
                with source.reading(blob.key) as path:
                    target.put_file(blob.key, path)
            except BlobMissingError:
                continue  # removed meanwhile
        found[blob.key] = blob.bytes
    return found


def _prune(target: Blobs, there: dict[str, int], database: str) -> None:
    """Remove what an earlier backup had and this one has not."""
    for blob in target.files():
        kept = blob.key in there or blob.key in (database, _REPORT) or blob.key.startswith("keys/")
        if not kept:
            target.delete(blob.key)


def _copy_keys(config: ServiceConfig, target: Blobs) -> None:
    """Copy what signs certificates."""
    for file in [config.data_dir / "operator.key"]:
        if file.is_file():
            target.put(f"keys/{file.relative_to(config.data_dir).as_posix()}", file.read_bytes())


def _key_files(config: ServiceConfig, source: Blobs) -> dict[str, Path]:
    return {blob.key: config.data_dir / blob.key for blob in source.files("keys")}


def _write_report(target: Blobs, report: BackupReport) -> None:
    target.put(_REPORT, json.dumps(asdict(report), indent=2).encode())


def _report(target: Blobs) -> BackupReport | None:
    try:
        return BackupReport(**json.loads(target.get(_REPORT)))
    except BlobMissingError:
        return None
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{target.where(_REPORT)} cannot be read: {error}", field="TARGET") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Back up or restore; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m backend.app.service_backup", description=__doc__)
    parser.add_argument("--config", type=Path, help="the service's TOML file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as for serve")
    parser.add_argument("--json", action="store_true", help="print one JSON document, for scripts")
    parser.add_argument("command", choices=["backup", "restore"])
    parser.add_argument("place", help="a folder, or s3://bucket/prefix")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    try:
        config = load_config(options.config, options.set)
        with private_files():
            place = config.blobs_at(
                options.place if "://" in options.place else str(Path(options.place).absolute())
            )
            report = back_up(config, place) if options.command == "backup" else restore(config, place)
    except TinkerGymError as error:
        print(f"tinkergym {options.command}: {error}", file=sys.stderr)
        if options.json:
            print(json.dumps({"error": error.to_wire()}), flush=True)
        return 1
    if options.json:
        print(json.dumps(asdict(report)), flush=True)
        return 0
    way = "backed up to" if options.command == "backup" else "restored from"
    print(
        f"{way} {options.place}: the database and {report.blobs} blobs with {report.bytes / 2**20:.1f} MiB, "
        f"in {time.monotonic() - began:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
