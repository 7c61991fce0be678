"""A certificate with everything that it refers to in one uncompressed tar archive.

Without compression, a damaged byte can be located. The file may be compressed for sending; `verify` reads it
anyway.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tinkergym.certificates.checks import certify
from tinkergym.certificates.page import page
from tinkergym.schema.certificate import BundledFile, Certificate, SignedFacts
from tinkergym.schema.events import Event
from tinkergym.schema.ids import EpisodeId

CERTIFICATE, PAGE = "certificate.json", "certificate.html"
EVENTS, EVENT_HASHES, LEDGER = "events.jsonl", "events.sha256", "ledger.jsonl"
EPISODES = "episodes/step-{step:06d}.jsonl"
UNPACKED = "optimizer.safetensors"
"""File of a checkpoint that is not in a bundle: large, and not part of the policy."""


class BundleWriter:
    """Writes the files of a bundle, and finally the certificate with their hashes."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._files: dict[str, BundledFile] = {}

    def add(self, name: str, body: bytes) -> None:
        """Add a file."""
        self._files[name] = BundledFile(sha256=hashlib.sha256(body).hexdigest(), bytes=len(body))
        self._write(name, body)

    def add_file(self, name: str, path: Path) -> None:
        """Add a file from disk, which may be larger than memory."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self._files[name] = BundledFile(sha256=digest, bytes=path.stat().st_size)
        self._archive.add(path, name, recursive=False, filter=_plain)

    def add_events(self, events: Iterable[Event]) -> None:
        """Add the log, and the hash of each event, by which a damaged one can be found."""
        lines = [event.model_dump_json().encode() for event in events]
        self.add(EVENTS, b"".join(line + b"\n" for line in lines))
        self.add(EVENT_HASHES, "".join(f"{hashlib.sha256(line).hexdigest()}\n" for line in lines).encode())

    def add_ledger(self, lines: Iterable[bytes]) -> None:
        """Add the outcome of each episode, step by step."""
        self.add(LEDGER, b"".join(line + b"\n" for line in lines))

    def add_episodes(self, episodes: Iterable[bytes]) -> None:
        """Add stored episodes in the order of their steps."""
        step, lines = -1, list[bytes]()
        for line in episodes:
            of = step_of_episode(json.loads(line)["episode_id"])
            if of != step and lines:
                self.add(EPISODES.format(step=step), b"".join(lines))
                lines = []
            step = of
            lines.append(line + b"\n")
        if lines:
            self.add(EPISODES.format(step=step), b"".join(lines))

    def finish(self, signed: SignedFacts) -> Certificate:
        """Add the certificate and its page."""
        certificate = certify(signed, self._files)
        self._write(CERTIFICATE, certificate.model_dump_json(indent=1).encode())
        self._write(PAGE, page(certificate).encode())
        return certificate

    def _write(self, name: str, body: bytes) -> None:
        entry = _plain(tarfile.TarInfo(name))
        entry.size = len(body)
        self._archive.addfile(entry, io.BytesIO(body))


@contextmanager
def writing_bundle(path: Path) -> Iterator[BundleWriter]:
    """Write a bundle to `path`, which appears when it is complete."""
    part = path.with_name(f".{path.name}.part")
    try:
        with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as archive:
            yield BundleWriter(archive)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def checkpoint_folder(agent: str, step: int) -> str:
    """Return the folder of a checkpoint in a bundle."""
    own = f"{agent.replace('/', '_').replace(os.sep, '_')}/" if agent else ""
    return f"checkpoints/{own}step-{step:06d}"


def step_of_episode(episode_id: str) -> int:
    """Return the step in an episode's id; -1 if it has none."""
    found = EpisodeId.find(episode_id)
    return -1 if found is None else found.step


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    # The same run gives the same bytes, regardless of who packs it and when.
    entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname, entry.mode = 0, 0, 0, "", "", 0o644
    return entry
