"""The folder of one service: usable, locked while it runs, with a file for local clients."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from backend.app.temporary_folders import owned, remove_leftovers
from backend.config import ServiceConfig
from backend.errors import ConfigError
from backend.private_folder import close_to_others, private_files, refuse_changes_by_others
from backend.settings.service_places import LONGEST_RUN_DIR
from backend.store.place import DEFAULT_FILE, database_file
from tinkergym.errors import StorageFullError

_LOCK = "serve.lock"


@contextmanager
def claimed(config: ServiceConfig, *, schedules: bool = True) -> Iterator[None]:
    """Create the folder and lock it and its database against other services until the block ends.

    A service that only runs a gateway locks nothing: several may share the folder and the database.

    Until then this process and its children create files that only this user can read.

    Raises:
        ConfigError: It cannot be written, another service runs on it, or other users can change it or reach
            the folder for sockets.
        StorageFullError: Its disk has less than `min_free_bytes` left.
    """
    _refuse_long_temporary_folder(config.run_dir)
    with private_files(), _claimed(config) if schedules else _shared(config):
        yield


@contextmanager
def _claimed(config: ServiceConfig) -> Iterator[None]:
    _make(config)
    file = database_file(config.store_url)
    database = None if file is None else file.resolve()
    with (
        _held(config.data_dir / _LOCK, config.data_dir, "data_dir"),
        # The database may be elsewhere, and two schedulers on one database would take each other's jobs. A
        # server's database knows its schedulers itself.
        nullcontext()
        if database is None
        else _held(database.with_name(f"{database.name}.serve.lock"), database, "database_url"),
        # Later no one could tell whose folder it was.
        owned(config.run_dir),
    ):
        remove_leftovers()
        yield


@contextmanager
def _shared(config: ServiceConfig) -> Iterator[None]:
    _make(config)
    yield


@contextmanager
def _held(lock: Path, what: Path, setting: str) -> Iterator[None]:
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(
            f"{lock} cannot be written: {error.strerror or error}",
            hint=f"choose another {setting}",
            field=setting,
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(descriptor, 100).decode("ascii", "replace").strip() or "unknown"
            raise ConfigError(
                f"another `tinkergym serve` (process {holder}) already runs on {what}",
                hint=f"use it, stop it, or choose another {setting}",
                field=setting,
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(
            descriptor
        )  # This also releases the lock. The file stays, because otherwise two services could lock two files.


def write_local_file(config: ServiceConfig, url: str, api_key: str) -> None:
    """Write the service's address for clients on this machine; readable by its owner only.

    Raises:
        ConfigError: It cannot be written.
    """
    try:
        _write_local_file(config, url, api_key)
    except OSError as error:
        raise ConfigError(
            f"{config.local_file} cannot be written: {error.strerror or error}",
            hint="free some space, or move away what is in its place",
            field="data_dir",
        ) from None


def _write_local_file(config: ServiceConfig, url: str, api_key: str) -> None:
    descriptor, name = tempfile.mkstemp(dir=config.data_dir, prefix=".local-")  # mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump({"url": url, "api_key": api_key}, file)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(config.local_file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_local_key(config: ServiceConfig) -> str:
    """Return the key from an earlier run; empty if there is none."""
    try:
        return str(json.loads(config.local_file.read_text(encoding="utf-8"))["api_key"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def log_file(config: ServiceConfig, name: str) -> Path:
    """Return the log file of a part."""
    return config.log_dir / f"{name}.log"


def _refuse_long_temporary_folder(run_dir: Path) -> None:
    # Otherwise the scheduler fails at each start, and only its log has the reason.
    temporary = tempfile.gettempdir()
    length = len(os.fsencode(temporary))
    most = LONGEST_RUN_DIR - len(os.fsencode(run_dir)) + length
    if length > most:
        raise ConfigError(
            f"the path of the temporary folder, {temporary}, has {length} bytes, but Ray's sockets below "
            f"it allow only {most}",
            hint="set TMPDIR to a folder with a shorter path: TMPDIR=/tmp tinkergym serve",
            field="TMPDIR",
        )


def _make(config: ServiceConfig) -> None:
    try:
        config.data_dir.mkdir(parents=True, exist_ok=True)
        refuse_changes_by_others(config.data_dir)
        close_to_others(config.data_dir, (_LOCK, DEFAULT_FILE))
        for folder in (config.jobs_dir, config.log_dir):
            folder.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=config.data_dir):
            pass
    except OSError as error:
        raise ConfigError(
            f"{error.filename or config.data_dir} cannot be written: {error.strerror or error}",
            hint="choose another data_dir, or set TINKERGYM_HOME",
            field="data_dir",
        ) from None
    free = shutil.disk_usage(config.data_dir).free
    if free < config.min_free_bytes:
        raise StorageFullError(
            f"the disk of {config.data_dir} has {free / 2**20:.0f} MiB left, "
            f"{config.min_free_bytes / 2**20:.0f} MiB are needed",
            hint="free some space, choose another data_dir, or lower min_free_bytes",
        )
