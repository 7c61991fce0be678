"""The operator's Ed25519 key, which signs the facts of runs."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

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
    def at(cls, path: Path, *, may_create: bool) -> OperatorKey:
        """Read the key, or create it at the first start.

        Args:
            path: A PEM file (PKCS 8, not encrypted), readable by its owner only.
            may_create: Whether to create a missing one.

        Raises:
            ConfigError: The file is missing, not such a key, or readable by others.
        """
        try:
            if may_create and not path.exists():
                _create(path)
            body, mode = path.read_bytes(), path.stat().st_mode
            key = load_pem_private_key(body, password=None)
        except (OSError, ValueError, TypeError) as error:
            raise _refused(path, f"cannot be read: {error}") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise _refused(path, "is not an Ed25519 key")
        if mode & 0o077:
            raise _refused(path, f"can be read by other users (mode {stat.S_IMODE(mode):o})")
        return cls(key)

    def signature_of(self, facts: RunFacts) -> Signature:
        """Sign facts."""
        return Signature(public_key=self.public, signature=self._key.sign(signed_bytes(facts)).hex())


def _create(path: Path) -> None:
    body = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    draft = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:  # Another gateway was faster; both use its key.
        pass
    finally:
        draft.unlink()


def _refused(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"the operator's key {path} {why}",
        hint="name a private key by `openssl genpkey -algorithm ed25519`, with mode 0600",
        field="operator_key",
    )
