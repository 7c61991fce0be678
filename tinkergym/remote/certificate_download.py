"""Fetch a run's certificate from the service and write it: a JSON file and a page, or a bundle."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tinkergym.basics.written_files import writing_to
from tinkergym.certificates.bundle import (
    UNPACKED,
    BundleWriter,
    checkpoint_folder,
    step_of_episode,
    writing_bundle,
)
from tinkergym.certificates.checks import certify
from tinkergym.certificates.page import page
from tinkergym.remote.api import Api
from tinkergym.remote.event_stream import follow
from tinkergym.schema.certificate import Certificate, Check, RunFacts, SignedFacts
from tinkergym.schema.events import CheckpointView


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCertificate:
    """A certificate and its files."""

    certificate: Certificate
    json: Path | None = None
    page: Path | None = None
    bundle: Path | None = None
    """Contains the other two, the adapter, the episodes and the events."""

    @property
    def checks(self) -> list[Check]:
        """Results of the checks."""
        return self.certificate.checks

    def __repr__(self) -> str:
        lines = [f"{check.verdict} {check.name}: {check.text}" for check in self.checks]
        written = [str(path) for path in (self.json, self.page, self.bundle) if path]
        return "\n".join([*lines, *written])

    @property
    def ok(self) -> bool:
        """Whether no check fails. `not_shown` does not count as failed."""
        return all(check.verdict != "fails" for check in self.checks)


def write_certificate(api: Api, job_id: str, folder: Path, *, bundle: bool) -> WrittenCertificate:
    """Fetch a run's facts and write its certificate.

    Args:
        api: The service's API.
        job_id: The job.
        folder: Where to write; created if it is missing.
        bundle: Write one archive with everything instead of two files.

    Raises:
        InvalidRequestError: `folder` cannot be written.
        NotFoundError: There is no such job.
    """
    signed = api.facts(job_id)
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if bundle:
        target = folder / f"{job_id}.bundle.tar"
        with writing_to(target), writing_bundle(target) as writer:
            certificate = _fill(api, signed, writer)
        return WrittenCertificate(certificate=certificate, bundle=target)
    certificate = certify(signed)
    as_json, as_page = (folder / f"{job_id}.certificate.{kind}" for kind in ("json", "html"))
    with writing_to(folder):
        as_json.write_text(certificate.model_dump_json(indent=1), encoding="utf-8")
        as_page.write_text(page(certificate), encoding="utf-8")
    return WrittenCertificate(certificate=certificate, json=as_json, page=as_page)


def _fill(api: Api, signed: SignedFacts, writer: BundleWriter) -> Certificate:
    facts = signed.facts
    job_id = facts.job.job_id
    # If the job is still running, later events are left out.
    writer.add_events(islice(follow(api.connection, job_id), facts.events.count))
    writer.add_ledger(islice(api.ledger(job_id), sum(bool(one.ledger_sha256) for one in facts.steps)))
    writer.add_episodes(known_to(facts, api.stored_episodes(job_id)))
    newest: dict[str, CheckpointView] = {}
    for one in facts.checkpoints:
        newest[one.agent] = one.view
    with tempfile.TemporaryDirectory() as scratch:
        for agent, view in newest.items():
            for name in view.files:
                if name != UNPACKED:
                    target = Path(scratch) / "file"
                    api.download(job_id, view.step, name, target, agent=agent)
                    writer.add_file(f"{checkpoint_folder(agent, view.step)}/{Path(name).name}", target)
    return writer.finish(signed)


def known_to(facts: RunFacts, episodes: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the stored episodes to which the facts refer.

    A running job stores more episodes of its next step after the facts were read. Those stored by then are
    listed as not learned from, and belong to the bundle.
    """
    recorded = {one.step for one in facts.steps}
    listed = {fate.sha256 for fate in facts.not_learned}
    for line in episodes:
        step = step_of_episode(json.loads(line)["episode_id"])
        if step in recorded or hashlib.sha256(line).hexdigest() in listed:
            yield line
