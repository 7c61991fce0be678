"""Verify a certificate: the document alone, or with everything in its bundle."""

from __future__ import annotations

import hashlib
import lzma
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from pydantic import BaseModel, ValidationError

from tinkergym.errors import InvalidDataError
from tinkergym.reporting.bundle import (
    CERTIFICATE,
    EPISODES,
    EVENT_HASHES,
    EVENTS,
    LEDGER,
    PAGE,
    reading_bundle,
)
from tinkergym.reporting.certificate_checks import checks_of, own_sha256
from tinkergym.schema.certificate import Certificate, EpisodeFate, StepFacts, StepLedger
from tinkergym.trajectory.digests import EMPTY_CHAIN

_MOST_NAMED = 20
"""The most problems shown of one kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was verified, and the problems found."""

    certificate: Certificate
    checked: Literal["certificate", "bundle"]
    """The document alone, or everything that it refers to."""
    problems: list[str]
    """Descriptions of mismatches; empty if there are none."""
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
        lines = [f"checked: {what}"]
        lines += [
            f"{one.verdict.replace('_', ' '):9}  {one.name}: {one.text}" for one in self.certificate.checks
        ]
        lines += [f"PROBLEM    {problem}" for problem in self.problems]
        lines += [f"note       {note}" for note in self.notes]
        return "\n".join(lines)


def verify(path: str | Path) -> Verification:
    """Verify a certificate's JSON, or a bundle.

    Args:
        path: `certificate.json`, or a bundle from `job.certificate(bundle=True)`.

    Raises:
        InvalidDataError: It is neither.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            is_json = file.read(1) in (b"{", b" ", b"\n")
        if is_json:
            certificate = _read(path.read_bytes())
            problems = _of_document(certificate)
            return Verification(certificate=certificate, checked="certificate", problems=problems)
        with reading_bundle(path) as files:
            if CERTIFICATE not in files:
                raise InvalidDataError(
                    f"{path} has no {CERTIFICATE}", hint="name what job.certificate() wrote", field="path"
                )
            return _bundle(files)
    except (OSError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError) as error:
        raise InvalidDataError(
            f"{path} cannot be read: {error}", hint="name what job.certificate() wrote", field="path"
        ) from error


def _read(body: bytes) -> Certificate:
    try:
        return Certificate.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "json_invalid":
            raise InvalidDataError(
                "this is not a certificate: it is not one JSON document",
                hint="name what job.certificate() wrote",
                field="path",
            ) from None
        where = ".".join(map(str, first["loc"]))
        raise InvalidDataError(
            f"the certificate cannot be read: {where}: {first['msg']}",
            hint="name what job.certificate() wrote, and use the tinkergym version that wrote it",
            field="path",
        ) from None


def _of_document(certificate: Certificate) -> list[str]:
    problems = []
    if own_sha256(certificate) != certificate.sha256:
        problems.append("certificate.json: it was changed: its own hash differs")
    judged = {check.name: check for check in checks_of(certificate.facts)}
    for check in certificate.checks:
        if judged.pop(check.name, None) != check:
            problems.append(f"certificate.json: its facts do not match its statement about {check.name}")
    problems += [f"certificate.json: the check {name} is missing" for name in judged]
    return problems


def _bundle(files: Mapping[str, IO[bytes]]) -> Verification:
    certificate = _read(files[CERTIFICATE].read())
    problems, notes = _of_document(certificate), list[str]()
    known = set(certificate.files) | {CERTIFICATE, PAGE}
    problems += [f"{name}: not part of the bundle" for name in sorted(files.keys() - known)]
    damaged: set[str] = set()
    for name, wanted in sorted(certificate.files.items()):
        if name not in files:
            problems.append(f"{name}: missing")
            damaged.add(name)
        elif hashlib.file_digest(files[name], "sha256").hexdigest() != wanted.sha256:  # type: ignore[arg-type]
            damaged.add(name)
    bodies = _Bodies(files)
    problems += _events(certificate, bodies, damaged)
    ledgers, wrong = _ledgers(certificate, bodies, damaged)
    problems += wrong
    problems += _episodes(certificate, bodies, damaged, ledgers, notes)
    problems += _checkpoints(certificate, bodies, damaged)
    # The other checks would add nothing.
    named = " ".join(problems)
    problems += [
        f"{name}: its bytes differ from those that were packed"
        for name in sorted(damaged)
        if name not in named
    ]
    notes.append(f"{PAGE} shows {CERTIFICATE} and is not checked itself")
    return Verification(
        certificate=certificate,
        checked="bundle",
        problems=problems,
        files=len(certificate.files),
        notes=notes,
    )


@dataclass(frozen=True, slots=True)
class _Bodies:
    files: Mapping[str, IO[bytes]]

    def lines(self, name: str) -> list[bytes]:
        """Return a file's lines; none if the file is missing."""
        file = self.files.get(name)
        if file is None:
            return []
        file.seek(0)
        return file.read().split(b"\n")[:-1]


def _events(certificate: Certificate, bodies: _Bodies, damaged: set[str]) -> Iterator[str]:
    lines = bodies.lines(EVENTS)
    digests = [hashlib.sha256(line) for line in lines]
    if EVENTS in damaged and EVENT_HASHES not in damaged:
        wanted = [line.decode("ascii", "replace") for line in bodies.lines(EVENT_HASHES)]
        if len(wanted) != len(lines):
            yield f"{EVENTS}: it has {len(lines)} events, but {len(wanted)} were packed"
        for number, (digest, expected) in enumerate(zip(digests, wanted, strict=False), start=1):
            if digest.hexdigest() != expected:
                yield f"{EVENTS}: event {number} differs from the one that was packed"
    elif EVENTS not in damaged:
        head = EMPTY_CHAIN
        for digest in digests:
            head = hashlib.sha256(bytes.fromhex(head) + digest.digest()).hexdigest()
        facts = certificate.facts.events
        if (head, len(lines)) != (facts.head_sha256, facts.count):
            yield f"{EVENTS}: the events differ from those that the service counted and chained"


def _ledgers(
    certificate: Certificate, bodies: _Bodies, damaged: set[str]
) -> tuple[dict[int, StepLedger], list[str]]:
    ledgers: dict[int, StepLedger] = {}
    problems = []
    by_hash = {hashlib.sha256(line).hexdigest(): line for line in bodies.lines(LEDGER)}
    for step in certificate.facts.steps:
        if not step.ledger_sha256:
            continue
        line = by_hash.get(step.ledger_sha256)
        if line is None:
            problems.append(f"{LEDGER}: the line of step {step.step} differs from the recorded one")
            continue
        try:
            ledgers[step.step] = StepLedger.model_validate_json(line)
        except ValidationError:
            problems.append(f"{LEDGER}: the line of step {step.step} is not a ledger")
            continue
        if not _counts(step, ledgers[step.step].episodes):
            problems.append(f"{LEDGER}: the episodes of step {step.step} do not match its counts")
    if not problems and LEDGER in damaged and LEDGER in bodies.files:
        problems.append(f"{LEDGER}: it has lines that were not recorded")
    return ledgers, problems


def _counts(step: StepFacts, fates: list[EpisodeFate]) -> bool:
    return (
        len(fates) == step.episodes
        and sum(fate.fate == "trained" for fate in fates) == step.trained
        and sum(fate.trained_tokens for fate in fates) == step.trained_tokens
        and sum(fate.matched_tokens for fate in fates) == step.matched_tokens
        and len({fate.episode_id for fate in fates}) == len(fates)
    )


def _episodes(
    certificate: Certificate,
    bodies: _Bodies,
    damaged: set[str],
    ledgers: Mapping[int, StepLedger],
    notes: list[str],
) -> Iterator[str]:
    absent = []
    for step, ledger in sorted(ledgers.items()):
        name = EPISODES.format(step=step)
        if name not in certificate.files:
            absent.append(step)
            continue
        yield from _named(name, bodies.lines(name), ledger.episodes)
    loose = certificate.facts.not_learned
    if loose:
        lines = [
            line
            for name in certificate.files
            if name.startswith("episodes/")
            and not any(EPISODES.format(step=step) == name for step in ledgers)
            for line in bodies.lines(name)
        ]
        yield from _named("episodes", lines, loose)
    if absent:
        notes.append(f"the episodes of {len(absent)} steps are not in the bundle: the service kept none")


def _named(name: str, lines: Iterable[bytes], fates: Iterable[EpisodeFate]) -> Iterator[str]:
    """Name the episodes whose record differs from the submitted one."""
    there = {hashlib.sha256(line).hexdigest() for line in lines}
    wrong = [fate.episode_id for fate in fates if fate.sha256 and fate.sha256 not in there]
    for episode_id in wrong[:_MOST_NAMED]:
        yield f"{name}: episode {episode_id} differs from the submitted one"
    if len(wrong) > _MOST_NAMED:
        yield f"{name}: and {len(wrong) - _MOST_NAMED} more episodes"


def _checkpoints(certificate: Certificate, bodies: _Bodies, damaged: set[str]) -> Iterator[str]:
    for name in certificate.files:
        if not name.endswith("/manifest.json") or name in damaged:
            continue
        folder = name.removesuffix("/manifest.json")
        try:
            manifest = _Manifest.model_validate_json(_whole(bodies.files[name]))
        except ValidationError:
            yield f"{name}: it is not the manifest of a checkpoint"
            continue
        for file, entry in manifest.files.items():
            packed = certificate.files.get(f"{folder}/{file}")
            if packed is not None and packed.sha256 != entry.sha256:
                yield f"{folder}/{file}: it differs from the file in the checkpoint's manifest"
            if f"{folder}/{file}" in damaged:
                yield f"{folder}/{file}: its bytes differ from those of the trained policy"
        recorded = {one.view.sha256 for one in certificate.facts.checkpoints}
        published = {one.weights_sha256 for one in certificate.facts.publishes}
        if manifest.weights_sha256 not in published:
            yield f"{name}: its weights were never published"
        weights = manifest.weights_file
        named = manifest.files.get(weights)
        if weights and (named is None or named.sha256 not in recorded):
            yield f"{folder}/{weights}: the service recorded no checkpoint with these weights"


class _Named(BaseModel):
    sha256: str


class _Manifest(BaseModel):
    """The fields of a checkpoint's manifest that are checked; it may be forged."""

    files: dict[str, _Named]
    weights_sha256: str
    weights_file: str = ""


def _whole(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()
