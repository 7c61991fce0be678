"""Verify a certificate: the document alone, or with everything in its bundle."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tinkergym.certificates.archive import LIMITS, BundleFiles, ReadLimits, reading_bundle, unreadable
from tinkergym.certificates.bundle import (
    CERTIFICATE,
    EPISODES,
    EVENT_HASHES,
    EVENTS,
    LEDGER,
    PAGE,
    step_of_episode,
)
from tinkergym.certificates.checkpoint_records import (
    checkpoint_problems,
    newest_checkpoints,
    packed_files,
)
from tinkergym.certificates.document import document_problems, read_certificate
from tinkergym.certificates.episode_records import episode_problems, read_ledgers
from tinkergym.certificates.event_log import read_log
from tinkergym.certificates.log_records import log_problems
from tinkergym.certificates.page import page
from tinkergym.certificates.signatures import read_public_key, signature_problem
from tinkergym.schema.certificate import Certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was verified, and the problems found."""

    certificate: Certificate
    checked: Literal["certificate", "bundle"]
    """The document alone, or everything that it refers to."""
    problems: list[str]
    """Descriptions of mismatches; empty if there are none."""
    signed: Literal["valid", "invalid", "not checked", "not signed"]
    """`valid`: the operator whose key was given signed the facts. `not checked`: no key was given."""
    files: int = 0
    """Number of hashed files of the bundle."""
    notes: list[str] = field(default_factory=list)
    """What could not be checked."""

    @property
    def ok(self) -> bool:
        """Whether there are no problems and no check fails."""
        return not self.problems and all(check.verdict != "fails" for check in self.certificate.checks)

    def __str__(self) -> str:
        what = (
            "the certificate alone; the adapter, episodes and events that it refers to were not checked"
            if self.checked == "certificate"
            else f"the certificate and all {self.files} files of its bundle"
        )
        lines = [f"checked: {what}", f"signature: {self._signature()}"]
        lines += [
            f"{one.verdict.replace('_', ' '):9}  {one.name}: {one.text}" for one in self.certificate.checks
        ]
        lines += [f"PROBLEM    {problem}" for problem in self.problems]
        lines += [f"note       {note}" for note in self.notes]
        return "\n".join(lines)

    def _signature(self) -> str:
        by = self.certificate.signature
        if by is None:
            return "not signed"
        named = f"by {by.public_key}"
        return f"{self.signed}, {named}" if self.signed != "not checked" else f"{named}, not checked (--key)"


def verify(path: str | Path, *, key: str | None = None, limits: ReadLimits = LIMITS) -> Verification:
    """Verify a certificate's JSON, or a bundle.

    Args:
        path: `certificate.json`, or a bundle from `job.certificate(bundle=True)`.
        key: The operator's public key, as 64 hexadecimal digits or a file that contains them. A certificate
            that its owner did not sign is a problem. None does not check signatures.
        limits: How much is read.

    Raises:
        InvalidRequestError: It is neither, is larger than what is read, or has members that are not plain
            files; or `key` is not a public key.
        MissingExtraError: `key` is given, and the package cryptography is not installed.
    """
    path = Path(path)
    public = None if key is None else read_public_key(key)
    try:
        if not path.is_file():  # A pipe or a device may never end.
            raise unreadable(f"{path} is not a file")
        with path.open("rb") as file:
            is_json = file.read(1) in (b"{", b" ", b"\n")
        if is_json:
            if path.stat().st_size > limits.most_bytes:
                raise unreadable(f"{path} has more than {limits.most_bytes:,} bytes")
            certificate = read_certificate(path.read_bytes(), limits)
            return _verified(certificate, public, list(document_problems(certificate)))
        with reading_bundle(path, limits) as files:
            if CERTIFICATE not in files.names:
                raise unreadable(f"{path} has no {CERTIFICATE}")
            certificate = read_certificate(files.body(CERTIFICATE), limits)
            problems, notes = _bundle(certificate, files)
            return _verified(certificate, public, problems, notes=notes, files=len(certificate.files))
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise unreadable(f"{path} cannot be read: {error}") from error


def _verified(
    certificate: Certificate,
    public: str | None,
    problems: list[str],
    *,
    notes: list[str] | None = None,
    files: int | None = None,
) -> Verification:
    signed: Literal["valid", "invalid", "not checked", "not signed"] = (
        "not signed" if certificate.signature is None else "not checked"
    )
    if public is not None:
        fault = signature_problem(certificate, public)
        problems = [*problems, *([f"signature: {fault}"] if fault else [])]
        if certificate.signature is not None:
            signed = "invalid" if fault else "valid"
    return Verification(
        certificate=certificate,
        checked="certificate" if files is None else "bundle",
        problems=problems,
        signed=signed,
        files=files or 0,
        notes=notes or [],
    )


def _bundle(certificate: Certificate, files: BundleFiles) -> tuple[list[str], list[str]]:
    facts = certificate.facts
    problems, notes = list(document_problems(certificate)), list[str]()
    problems += _names(certificate, files)
    damaged = {
        name
        for name, wanted in certificate.files.items()
        if name not in files.names or (files.size(name), files.sha256(name)) != (wanted.bytes, wanted.sha256)
    }
    log = None
    if EVENTS in files.names:
        log = read_log(files, facts.job.job_id, compare_hashes=EVENT_HASHES not in damaged)
        problems += log.problems
        if EVENTS in damaged:
            log = None
        else:
            problems += log_problems(facts, log)
    ledgers, wrong = read_ledgers(facts, files)
    problems += wrong
    problems += episode_problems(facts, files, ledgers, log)
    problems += checkpoint_problems(facts, files, damaged)
    # The other checks would add nothing.
    named = " ".join(problems)
    problems += [
        f"{name}: its bytes differ from those that were packed"
        for name in sorted(damaged & files.names)
        if name not in named
    ]
    if PAGE in files.names and files.body(PAGE) != page(certificate).encode():
        problems.append(f"{PAGE}: it is not the page that this version of tinkergym makes of {CERTIFICATE}")
    absent = [step for step in ledgers if EPISODES.format(step=step) not in files.names]
    if absent:
        notes.append(f"the episodes of {len(absent)} steps are not in the bundle: the service kept none")
    return list(dict.fromkeys(problems)), notes


def _names(certificate: Certificate, files: BundleFiles) -> Iterator[str]:
    """Name the files that are missing, and those that do not belong to the bundle."""
    facts = certificate.facts
    always = {EVENTS, EVENT_HASHES, LEDGER}
    always |= {name for one in newest_checkpoints(facts) for name in packed_files(one)}
    steps = {one.step for one in facts.steps}
    steps |= {step_of_episode(fate.episode_id) for fate in facts.not_learned}
    episodes = {EPISODES.format(step=step) for step in steps}
    for name in sorted((set(certificate.files) | always | {PAGE}) - files.names):
        yield f"{name}: missing"
    known = (set(certificate.files) & (always | episodes)) | {CERTIFICATE, PAGE}
    for name in sorted((files.names | set(certificate.files)) - known):
        yield f"{name}: not part of the bundle"
