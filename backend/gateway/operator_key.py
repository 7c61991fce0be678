"""The operator's Ed25519 key, which signs the facts of runs."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from backend.errors import ConfigError
from tinkergym.schema.certificate import RunFacts, Signature, signed_bytes


class OperatorKey:
    """Signs what the service recorded. It never signs what a client sends."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw().hex()
        """64 hexadecimal digits."""

    @classmethod
    def at(cls, path: Path) -> OperatorKey:
        """Read a configured key.

        Args:
            path: A PEM file (PKCS 8, not encrypted), readable by its owner only.

        Raises:
            ConfigError: The file is missing, not such a key, or readable by others.
        """
        try:
            body, mode = path.read_bytes(), path.stat().st_mode
        except OSError as error:
            raise _refused(path, f"cannot be read: {error}") from error
        if mode & 0o077:
            raise _refused(path, f"can be read by other users (mode {stat.S_IMODE(mode):o})")
        return cls(_read(body, path))

    @classmethod
    def of_service(cls, keep: Callable[[str, str], str], before: Path) -> OperatorKey:
        """Return the key that all gateways of the service share; the first one that starts makes it.

        Args:
            keep: Stores a secret by its name unless there is one; returns the stored one.
            before: Where earlier versions stored it; it is adopted.

        Raises:
            ConfigError: The file is there and cannot be used.
        """
        made = cls.at(before)._key if before.exists() else Ed25519PrivateKey.generate()
        body = made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        return cls(_read(keep("operator_key", body).encode(), before))

    def signature_of(self, facts: RunFacts) -> Signature:
        """Sign facts."""
        return Signature(public_key=self.public, signature=self._key.sign(signed_bytes(facts)).hex())


def _read(body: bytes, path: Path) -> Ed25519PrivateKey:
    try:
        key = load_pem_private_key(body, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _refused(path, f"cannot be read: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _refused(path, "is not an Ed25519 key")
    return key


def _refused(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"the operator's key {path} {why}",
        hint="name a private key by `openssl genpkey -algorithm ed25519`, with mode 0600",
        field="operator_key",
    )
