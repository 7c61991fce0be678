"""The certificate of a run's facts, with its own hash."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from tinkergym.certificates.checks import checks_of
from tinkergym.schema.certificate import BundledFile, Certificate, SignedFacts


def certify(signed: SignedFacts, files: Mapping[str, BundledFile] | None = None) -> Certificate:
    """Return the certificate of a run.

    Args:
        signed: The facts, with the signature of the service's operator if there is one.
        files: The files of its bundle.
    """
    return sealed(
        Certificate(
            facts=signed.facts,
            checks=checks_of(signed.facts),
            files=dict(files or {}),
            signature=signed.signature,
        )
    )


def sealed(certificate: Certificate) -> Certificate:
    """Return a certificate with its own hash."""
    return certificate.model_copy(update={"sha256": own_sha256(certificate)})


def own_sha256(certificate: Certificate) -> str:
    """Return the hash of a certificate without its own hash."""
    return hashlib.sha256(
        certificate.model_copy(update={"sha256": ""}).model_dump_json().encode()
    ).hexdigest()
