"""The certificate's own JSON: read it, and check what can be checked without its bundle."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pydantic import ValidationError

from tinkergym.certificates.archive import ReadLimits, unreadable
from tinkergym.certificates.bundle import CERTIFICATE
from tinkergym.certificates.checks import checks_of, own_sha256
from tinkergym.certificates.fact_consistency import fact_problems
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.certificate import Certificate


def read_certificate(body: bytes, limits: ReadLimits) -> Certificate:
    """Parse a certificate.

    Raises:
        InvalidRequestError: It is not one, is too large, or a name occurs twice in one of its objects.
    """
    if body.count(b"{") > limits.most_objects:
        raise unreadable(f"{CERTIFICATE} has more than {limits.most_objects:,} objects")
    try:
        certificate = Certificate.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "json_invalid":
            raise unreadable("this is not a certificate: it is not one JSON document") from None
        where = ".".join(map(str, first["loc"]))
        raise InvalidRequestError(
            f"the certificate cannot be read: {where}: {first['msg']}",
            hint="name what job.certificate() wrote, and use the tinkergym version that wrote it",
            field="path",
        ) from None
    refuse_repeated_names(body, CERTIFICATE)
    # Checks look at each of its steps.
    if not certificate.facts.job.spec.by_calls and certificate.facts.job.step > limits.most_objects:
        raise unreadable(f"{CERTIFICATE} is of a job at step {certificate.facts.job.step:,}")
    return certificate


def refuse_repeated_names(body: bytes, name: str) -> None:
    """Refuse JSON in which an object has a name twice: readers disagree on its value.

    Raises:
        InvalidRequestError: It has.
    """

    def once(pairs: list[tuple[str, object]]) -> None:
        if len({own for own, _ in pairs}) < len(pairs):
            raise unreadable(f"{name}: an object has the same name twice")

    json.loads(body, object_pairs_hook=once)


def document_problems(certificate: Certificate) -> Iterator[str]:
    """Name what in a certificate contradicts the rest of it."""
    if own_sha256(certificate) != certificate.sha256:
        yield f"{CERTIFICATE}: it was changed: its own hash differs"
    judged = {check.name: check for check in checks_of(certificate.facts)}
    for check in certificate.checks:
        if judged.pop(check.name, None) != check:
            yield f"{CERTIFICATE}: its facts do not match its statement about {check.name}"
    for name in judged:
        yield f"{CERTIFICATE}: the check {name} is missing"
    for problem in fact_problems(certificate.facts):
        yield f"{CERTIFICATE}: {problem}"
