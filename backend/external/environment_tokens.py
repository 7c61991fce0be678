"""Tokens of environment servers from jobs: kept in separate files, never in a job.

A job has `stored:NAME` instead of a token, which is what lists, events and databases show. The file is
deleted when no job needs it any more: the scheduler checks every few seconds.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from backend.errors import ConfigError
from tinkergym.schema.jobs.parts import EnvironmentRef

_PREFIX = "stored:"
_KEY = "names.key"
_LOCK = "names.lock"
_TOKEN_FILE = re.compile(r"[0-9a-f]{32}|\..+\.[0-9a-f]{16}")
"""A token, or a draft left by a killed process."""
_GRACE_SECONDS = 120.0
"""A token is stored before its job; until then no job uses it."""


class EnvTokens:
    """A folder of tokens that only the service's user can read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put_away(self, ref: EnvironmentRef, tenant_id: str) -> EnvironmentRef:
        """Return the reference with its token, if it has one, replaced by the token's name.

        The same token of the same tenant has the same name, so a repeated request stays the same request.
        """
        token = ref.kwargs.get("token")
        if not token:
            return without_token(ref)
        assert isinstance(token, str)
        name = hmac.new(self._key(), f"{tenant_id}\0{token}".encode(), hashlib.sha256).hexdigest()[:32]
        with self._alone():
            self._write(name, token.encode(), replace=True)
        return EnvironmentRef(id=ref.id, kwargs={**ref.kwargs, "token": _PREFIX + name})

    def fetch(self, ref: EnvironmentRef) -> EnvironmentRef:
        """Return the reference with the token that `put_away` took. Only for references out of the store.

        Raises:
            ConfigError: The file is gone.
        """
        stored = ref.kwargs.get("token")
        if not isinstance(stored, str) or not stored.startswith(_PREFIX):
            return without_token(ref)
        # Names from `put_away` have no separators; no other name may lead out of the folder.
        file = self._folder / Path(stored.removeprefix(_PREFIX)).name
        try:
            token = file.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"the token of the environment server cannot be read: {file}: {error.strerror or error}",
                hint="submit the job again with its token",
                field="token",
            ) from None
        return EnvironmentRef(id=ref.id, kwargs={**ref.kwargs, "token": token})

    def remove_unused(self, in_use: Iterable[EnvironmentRef], now: float) -> int:
        """Delete the tokens that no job needs any more, except recent ones.

        Args:
            in_use: Names used by unfinished jobs, of all tenants; read only if there are old tokens.
            now: Unix seconds.

        Returns:
            How many were deleted.
        """
        if not any(_is_old(file, now) for file in self._files()):
            return 0  # Without asking for `in_use`, which may be long.
        stored = (str(secret) for ref in in_use for secret in _secrets(ref))
        needed = {name.removeprefix(_PREFIX) for name in stored if name.startswith(_PREFIX)}
        removed = 0
        # Exclusively: between the check of a file's age and its deletion, the same token must not be stored
        # again.
        with self._alone():
            for file in self._files():
                if file.name not in needed and _is_old(file, now):
                    file.unlink()
                    removed += 1
        return removed

    def _files(self) -> list[Path]:
        """Return the tokens, and drafts of killed processes."""
        if not self._folder.exists():
            return []
        return [file for file in self._folder.iterdir() if _TOKEN_FILE.fullmatch(file.name)]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes of the service from changing the folder."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)  # This also releases the lock.

    def _key(self) -> bytes:
        file = self._folder / _KEY
        if not file.exists():
            self._write(_KEY, secrets.token_bytes(32), replace=False)
        return file.read_bytes()

    def _write(self, name: str, data: bytes, *, replace: bool) -> None:
        """Write a file atomically, durably and for its owner only."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._folder / f".{name}.{secrets.token_hex(8)}"
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if replace:
                draft.replace(self._folder / name)
            elif not (self._folder / name).exists():
                # If two gateways start at once, one key wins.
                with suppress(FileExistsError):
                    os.link(draft, self._folder / name)
        finally:
            draft.unlink(missing_ok=True)


def _is_old(file: Path, now: float) -> bool:
    try:
        return now - file.stat().st_mtime > _GRACE_SECONDS
    except FileNotFoundError:  # A draft that has become a token.
        return False


def _secrets(ref: EnvironmentRef) -> Iterator[object]:
    """Yield the values of a reference that may name a stored secret: a token, or the key of a judge."""
    judge = ref.kwargs.get("judge")
    yield ref.kwargs.get("token", "")
    yield judge.get("api_key", "") if isinstance(judge, dict) else ""


def without_token(ref: EnvironmentRef) -> EnvironmentRef:
    """Return the reference without a token, for a job whose environments its own client makes."""
    return EnvironmentRef(id=ref.id, kwargs={k: v for k, v in ref.kwargs.items() if k != "token"})
