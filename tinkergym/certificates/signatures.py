"""Check an operator's signature of a run's facts; needs the package cryptography."""

from __future__ import annotations

import re
from pathlib import Path

from tinkergym.basics.extras import import_extra
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.certificate import KEY_PATTERN, Certificate, signed_bytes

_LONGEST_KEY_FILE = 1000


def read_public_key(text: str) -> str:
    """Return a public key that is given as its 64 hexadecimal digits, or as a file that contains them.

    Raises:
        InvalidRequestError: It is neither.
    """
    written = text
    try:
        path = Path(text)
        if path.is_file():
            with path.open(encoding="ascii") as file:
                written = file.read(_LONGEST_KEY_FILE)
    except (OSError, ValueError):  # Not a path, or not a text file.
        written = ""
    found = written.strip().lower()
    if not re.fullmatch(KEY_PATTERN, found):
        raise InvalidRequestError(
            f"{text[:80]!r} is not a public key",
            hint="give the 64 hexadecimal digits that `tinkergym status` shows to clients of the service, or "
            "a file that contains them",
            field="key",
        )
    return found


def signature_problem(certificate: Certificate, key: str) -> str:
    """Return what is wrong with a certificate's signature; empty if it is by the owner of `key`.

    Raises:
        MissingExtraError: The package cryptography is not installed.
    """
    needed = "checking a signature needs the package cryptography"
    keys = import_extra("cryptography.hazmat.primitives.asymmetric.ed25519", needed, extra="signatures")
    errors = import_extra("cryptography.exceptions", needed, extra="signatures")
    found = certificate.signature
    if found is None:
        return "it is not signed"
    if found.public_key != key:
        return f"it is signed by another key: {found.public_key}"
    try:
        # Not every 32 bytes are a key.
        public = keys.Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
        public.verify(bytes.fromhex(found.signature), signed_bytes(certificate.facts))
    except (errors.InvalidSignature, ValueError):
        return "its facts are not those that the operator signed"
    return ""
