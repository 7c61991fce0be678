"""Where a service keeps what it has: its database, blobs, logs and sockets."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from pydantic import Field, field_validator

from backend.planning.strict_settings import Settings
from backend.store.blobs import Blobs
from backend.store.folder_cache import FolderCache
from backend.store.local_blobs import LocalBlobs
from backend.store.place import default_url
from tinkergym.schema.refusals import Refusal

_LONGEST_SOCKET = "ray/session_2026-01-31_23-59-59_000000_4194304/sockets/plasma_store"
"""The longest path of a socket below `run_dir`: Ray's. The last number is the largest process id."""

LONGEST_RUN_DIR = 107 - len("/" + _LONGEST_SOCKET)
"""In bytes: the kernel's `sockaddr_un` takes 107 and a terminating zero."""


def _home() -> Path:
    return Path(os.environ.get("TINKERGYM_HOME") or "~/.tinkergym")


class ServicePlaces(Settings):
    """The settings that say where things are, and the places that follow from them."""

    data_dir: Path = Field(default_factory=_home, validate_default=True)
    """Database, checkpoints, logs and `local.json`. Default: $TINKERGYM_HOME, else `~/.tinkergym`."""

    operator_key: Path | None = None
    """Ed25519 private key (PEM) that signs certificates. By default one is created in the database.
    `tinkergym status` shows the public key."""

    database_url: str = ""
    """`sqlite:////absolute/path` or `postgresql://user@host/database`. Empty means `tinkergym.sqlite3` in
    `data_dir`."""

    blobs: str = ""
    """Where checkpoints, uploads and images are kept: an absolute folder, or `s3://bucket/prefix`, which
    requires the extra `s3` and takes credentials and endpoint from the environment as other S3 clients do.
    Empty means `data_dir`."""

    blob_cache_bytes: int = Field(50 * 2**30, ge=0)
    """Disk space on each node for checkpoints from an object store, in `data_dir`. Those used longest ago are
    removed for new ones, but none within 10 minutes."""

    min_free_bytes: int = Field(200 * 2**20, ge=0)
    """Free disk space in `data_dir` that the service needs to start."""

    @field_validator("data_dir", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        if value == "":  # That would be the folder in which the service happens to be started.
            raise Refusal("", "is empty", "name a folder, or leave out the setting").in_validator()
        return value

    @field_validator("data_dir", "operator_key")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        # Every process of the service must use the same one, whatever its working directory.
        return None if value is None else value.expanduser().absolute()

    @field_validator("blobs")
    @classmethod
    def _place(cls, value: str) -> str:
        value = value.rstrip("/")
        if value and "://" not in value and not Path(value).expanduser().is_absolute():
            reason = f"{value!r} is neither an absolute folder nor a URL"
            raise Refusal("", reason, "write /a/folder or s3://bucket/prefix").in_validator()
        return value if "://" in value or not value else str(Path(value).expanduser())

    @property
    def store_url(self) -> str:
        """Where the database is."""
        return self.database_url or default_url(self.data_dir)

    @property
    def operator_key_file(self) -> Path:
        """Where the operator's key is, if it is configured or of an earlier version."""
        return self.operator_key or self.data_dir / "operator.key"

    @property
    def job_files(self) -> Blobs:
        """Files of jobs: checkpoints, under the job's id."""
        return self.blobs_in("jobs")

    @property
    def uploads(self) -> Blobs:
        """Uploaded data."""
        return self.blobs_in("uploads")

    @property
    def images(self) -> Blobs:
        """Uploaded images, separated by tenant."""
        return self.blobs_in("images")

    def blobs_in(self, folder: str) -> Blobs:
        """Return the blobs in one of the folders of the service's store."""
        return self.blobs_at(self.blobs or str(self.data_dir)).below(folder)

    def blobs_at(self, place: str) -> Blobs:
        """Return the blobs in a folder, or at the URL of an object store.

        Raises:
            MissingExtraError: What speaks the URL's protocol is not installed.
            ConfigError: Its protocol is not known.
        """
        if "://" not in place:
            return LocalBlobs(Path(place))
        from backend.store.object_blobs import ObjectBlobs

        return ObjectBlobs(place, FolderCache(self.data_dir / "blob-cache", most_bytes=self.blob_cache_bytes))

    @property
    def jobs_dir(self) -> Path:
        """Parent of `<job_id>/checkpoints/`, without `blobs`."""
        return self.data_dir / "jobs"

    @property
    def log_dir(self) -> Path:
        """Output of the service's processes."""
        return self.data_dir / "logs"

    @property
    def local_file(self) -> Path:
        """Where a client on this machine finds the URL and a key; readable by its owner only."""
        return self.data_dir / "local.json"

    @property
    def tokens_dir(self) -> Path:
        """Tokens of environment servers, where earlier versions kept them; read once at a start."""
        return self.data_dir / "env-tokens"

    @property
    def run_dir(self) -> Path:
        """For Unix sockets, Ray's included; private to the user who runs the service.

        In `data_dir`, unless the path would be too long for a socket: then in the system's temporary folder,
        under a name derived from `data_dir`.
        """
        inside = self.data_dir / "run"
        if len(os.fsencode(inside)) <= LONGEST_RUN_DIR:
            return inside
        return Path(tempfile.gettempdir()) / f"tinkergym-{os.getuid()}-{self.digest}"

    @property
    def early_worker_socket(self) -> Path:
        """Where the first pool's process waits until Ray is ready."""
        return self.run_dir / "early.sock"

    @property
    def ray_dir(self) -> Path:
        """For Ray's sockets and logs; created by the scheduler's host.

        Ray makes its folders writable for everyone, so they need a private parent.
        """
        return self.run_dir / "ray"

    @property
    def digest(self) -> str:
        """A short name derived from `data_dir`, for things that cannot be in it."""
        return hashlib.sha256(os.fsencode(self.data_dir)).hexdigest()[:12]
