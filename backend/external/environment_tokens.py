"""Secrets of jobs, such as tokens of environment servers: kept apart from jobs, in the service's database.

A job has `stored:NAME` instead of a token, which is what lists, events and records show. A secret is deleted
when no job needs it any more: the scheduler checks every few seconds. Pools hand secrets to the service's own
workers with the episodes that need them.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from backend.errors import ConfigError
from tinkergym.schema.jobs.parts import EnvironmentRef

_PREFIX = "stored:"
_TOKEN_FILE = re.compile(r"[0-9a-f]{32}")


ReadSecret = Callable[[str], str | None]


class PutSecret(Protocol):
    """Where one tenant's secrets are stored: `TenantStore`."""

    def put_secret(self, value: str) -> str:
        """Store a secret and return its name; the same secret has the same name while it is stored."""
        ...


class Secrets(Protocol):
    """Where the service's secrets are: `ServiceStore`."""

    def adopt_secret(self, name: str, value: str) -> None:
        """Store a secret that already has a name, unless it is there."""
        ...

    def has_old_secrets(self, now: float) -> bool:
        """Whether there are secrets that may be deleted if no job uses them."""
        ...

    def delete_secrets(self, in_use: Collection[str], now: float) -> int:
        """Delete the secrets with other names, except recent ones; return how many."""
        ...


def put_away(ref: EnvironmentRef, store: PutSecret) -> EnvironmentRef:
    """Return the reference with its token, if it has one, replaced by the token's name."""
    token = ref.kwargs.get("token")
    if not token:
        return ref.without_token()
    assert isinstance(token, str)
    return EnvironmentRef(id=ref.id, kwargs={**ref.kwargs, "token": _PREFIX + store.put_secret(token)})


def fetch(ref: EnvironmentRef, read: ReadSecret) -> EnvironmentRef:
    """Return the reference with the token that `put_away` took. Only for references out of the store.

    Args:
        ref: The reference.
        read: Returns a secret by its name; None if there is none.

    Raises:
        ConfigError: It is gone.
    """
    stored = ref.kwargs.get("token")
    if not isinstance(stored, str) or not stored.startswith(_PREFIX):
        return ref.without_token()
    token = read(stored.removeprefix(_PREFIX))
    if token is None:
        raise ConfigError(
            "the token of the environment server is no longer stored",
            hint="submit the job again with its token",
            field="token",
        )
    return EnvironmentRef(id=ref.id, kwargs={**ref.kwargs, "token": token})


def remove_unused(store: Secrets, in_use: Iterable[EnvironmentRef], now: float) -> int:
    """Delete the secrets that no job needs any more, except recent ones.

    Args:
        store: The store.
        in_use: Names used by unfinished jobs, of all tenants; read only if there are old secrets.
        now: Unix seconds.

    Returns:
        How many were deleted.
    """
    if not store.has_old_secrets(now):
        return 0  # Without asking for `in_use`, which may be long.
    stored = (str(secret) for ref in in_use for secret in _secrets(ref))
    needed = {name.removeprefix(_PREFIX) for name in stored if name.startswith(_PREFIX)}
    return store.delete_secrets(needed, now)


def adopt_folder(folder: Path, store: Secrets) -> None:
    """Move the secrets of a folder of earlier versions into the store."""
    if not folder.is_dir():
        return
    for file in folder.iterdir():
        if _TOKEN_FILE.fullmatch(file.name):
            store.adopt_secret(file.name, file.read_text(encoding="utf-8"))
    shutil.rmtree(folder, ignore_errors=True)


def _secrets(ref: EnvironmentRef) -> Iterator[object]:
    """Yield the values of a reference that may name a stored secret: a token, or the key of a judge."""
    judge = ref.kwargs.get("judge")
    yield ref.kwargs.get("token", "")
    yield judge.get("api_key", "") if isinstance(judge, dict) else ""
