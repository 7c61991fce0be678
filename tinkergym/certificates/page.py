"""A certificate as one HTML page that loads nothing: no script, no style sheet, no image."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Sequence
from html import escape

from tinkergym.display.html import curve, document
from tinkergym.schema.certificate import Certificate, RunFacts

_VERDICTS = {
    "holds": ("holds", "#1a7f37"),
    "fails": ("fails", "#b91c1c"),
    "not_shown": ("not shown", "#8a6d00"),
}
_NOT_PROVEN = (
    "`tinkergym verify` shows that the parts of a certificate belong together. Who made it is shown by its "
    "signature, for those who know the operator's public key: `tinkergym verify --key`. To pin when it was "
    "made, record its hash elsewhere on the day of the run."
)


def page(certificate: Certificate) -> str:
    """Return the page."""
    facts = certificate.facts
    job = facts.job
    made = datetime.datetime.fromtimestamp(facts.made_at, datetime.UTC)
    parts = [
        f"<h1>Certificate of {escape(job.job_id)}</h1>",
        f"<p>{escape(job.spec.kind)} on <b>{escape(job.spec.model)}</b>, {escape(str(job.state))} at step "
        f"{job.step} of {job.spec.steps}. Made {made:%Y-%m-%d %H:%M} UTC by tinkergym "
        f"{escape(facts.service_version)}.</p>",
        f"<p>SHA-256 <code>{escape(certificate.sha256)}</code></p>",
        f"<p>{escape(_signer(certificate))}</p>",
        "<h2>Checks</h2>",
        _table(
            ["check", "verdict", "figure"],
            [[check.name, check.verdict, check.text] for check in certificate.checks],
        ),
        _agreement(facts),
        _steps(facts),
        _where(facts),
        "<h2>Effective settings</h2>",
        f"<pre>{escape(json.dumps(job.spec.model_dump(mode='json'), indent=1))}</pre>",
        _files(certificate),
        f"<p><small>{escape(_NOT_PROVEN)}</small></p>",
    ]
    return document(job.job_id, "".join(parts))


def _signer(certificate: Certificate) -> str:
    by = certificate.signature
    # A page cannot check it.
    return "Not signed." if by is None else f"It claims to be signed by the key {by.public_key}."


def _agreement(facts: RunFacts) -> str:
    rows = [
        [one.agent or "-", one.version, f"{one.mean:.3g}", f"{one.largest:.3g}", one.tokens, one.by]
        for one in facts.agreements
    ]
    picture = curve([one.mean for one in facts.agreements], "mean difference in nats, by publish")
    head = ["policy", "version", "mean (nats)", "largest", "tokens", "compared by"]
    return f"<h2>Engine and learner after each publish</h2>{picture}{_table(head, rows)}"


def _steps(facts: RunFacts) -> str:
    played = facts.job.spec.played
    head = ["step", "attempt", "learning rate"]
    head += (
        ["episodes", "trained", "dropped", "retried", "issued again", "trained tokens", "of them sampled"]
        if played
        else ["records", "trained tokens", "hash of their tokens"]
    )
    rows: list[list[object]] = []
    for one in facts.steps:
        rates = [f"{agent} {rate:.3g}" for agent, rate in one.learning_rates.items()]
        rate = (", ".join(rates) or "-") if one.learning_rate is None else f"{one.learning_rate:.3g}"
        dropped = ", ".join(f"{count} {why}" for why, count in sorted(one.dropped.items())) or "0"
        own: list[object] = (
            [
                one.episodes,
                one.trained,
                dropped,
                one.retried,
                one.issued_again,
                one.trained_tokens,
                one.matched_tokens,
            ]
            if played
            else [one.records, one.trained_tokens, one.records_sha256[:16]]
        )
        rows.append([one.step, one.attempt, rate, *own])
    return f"<h2>Steps</h2>{_table(head, rows)}"


def _where(facts: RunFacts) -> str:
    rows = [
        [
            one.attempt,
            ", ".join(f"{name} {version}" for name, version in one.versions.items()),
            ", ".join(f"{name}={value}" for name, value in one.place.items()),
        ]
        for one in facts.attempts
    ]
    packs = {
        **facts.job.packs,
        **{f"{one.distribution} (client)": one.version for one in facts.job.client_packs},
    }
    template = facts.job.spec.template_sha256
    pinned = [["seed", facts.job.spec.seed], *packs.items(), *facts.data.items(), *_overlaps(facts)]
    pinned += [["chat template", template]] if template else []
    return (
        f"<h2>Where it ran</h2>{_table(['attempt', 'versions', 'place'], rows)}"
        f"{_table(['seed, packs, data, template', ''], pinned)}"
    )


def _overlaps(facts: RunFacts) -> list[tuple[str, str]]:
    """Return how many tasks of each evaluation are also trained on."""
    spec = facts.job.spec
    found = spec.known_tasks()
    return [
        (
            f"tasks of evaluation {name}",
            f"{one.tasks}, of which {'an unknown number' if one.trained_on is None else one.trained_on} "
            f"are also trained on",
        )
        for name, one in found.items()
    ]


def _files(certificate: Certificate) -> str:
    if not certificate.files:
        return ""
    rows = [[name, one.bytes, one.sha256] for name, one in sorted(certificate.files.items())]
    return f"<h2>Files of the bundle</h2>{_table(['file', 'bytes', 'SHA-256'], rows)}"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    titles = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><tr>{titles}</tr>{lines}</table>"


def _cell(value: object) -> str:
    text = str(value)
    if text in _VERDICTS:
        word, colour = _VERDICTS[text]
        return f"<td style='color:{colour}'><b>{word}</b></td>"
    return f"<td>{escape(text)}</td>"
