"""The certificate of a run: checks of its facts, and its own hash. Pure: equal facts, equal checks."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping

from tinkergym.certificates.policy_checks import policy_checks, some
from tinkergym.schema.certificate import BundledFile, Certificate, Check, RunFacts, SignedFacts, StepFacts
from tinkergym.schema.chat_templates import template_sha256
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.schema.jobs.training_spec import TrainingSpec


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


def checks_of(facts: RunFacts) -> list[Check]:
    """Check the facts of a run."""
    checks = [_ended(facts), *policy_checks(facts)]
    spec = facts.job.spec
    if played := spec.played:
        checks += [_tokens(facts), _episodes(facts, played)]
        if played.environment_data:
            checks.append(_of_the_job(facts, _tasks(facts, played)))
    if spec.template_sha256:
        checks.append(_template(spec))
    if spec.datasets:
        checks.append(_of_the_job(facts, _data(facts)))
    return checks


def _ended(facts: RunFacts) -> Check:
    job = facts.job
    name = "run_complete"
    if job.spec.by_calls:
        return Check(name=name, verdict="not_shown", text="the user's own loop decides when it is complete")
    recorded = Counter(one.step for one in facts.steps)
    missing = [step for step in range(1, job.step + 1) if not recorded[step]]
    if missing:
        return Check(name=name, verdict="fails", text=f"recorded steps without facts: {some(missing)}")
    twice = sorted(step for step, times in recorded.items() if times > 1)
    if twice:
        return Check(name=name, verdict="fails", text=f"steps recorded more than once: {some(twice)}")
    if not job.state.final:
        return Check(
            name=name,
            verdict="not_shown",
            text=f"the job is {job.state}: step {job.step} of {job.spec.steps} so far",
        )
    text = f"the job is {job.state} at step {job.step} of {job.spec.steps}; each step is recorded once"
    return Check(name=name, verdict="holds", text=text)


def _tokens(facts: RunFacts) -> Check:
    name = "trained_tokens_were_sampled"
    trained = sum(one.trained_tokens for one in facts.steps)
    matched = sum(one.matched_tokens for one in facts.steps)
    if not trained:
        return Check(name=name, verdict="not_shown", text="nothing was trained on")
    text = f"{matched:,} of {trained:,} trained tokens match the engine's completions by digest"
    wrong = [one.step for one in facts.steps if one.matched_tokens != one.trained_tokens]
    if wrong:
        return Check(name=name, verdict="fails", text=f"{text}; steps with other tokens: {some(wrong)}")
    return Check(name=name, verdict="holds", text=text)


def _episodes(facts: RunFacts, spec: PlayedSpec) -> Check:
    name = "every_episode_accounted_for"
    wanted = spec.groups.episodes
    wrong = [one.step for one in facts.steps if not _adds_up(one, wanted)]
    if wrong:
        return Check(name=name, verdict="fails", text=f"the episodes of steps {some(wrong)} do not add up")
    dropped: Counter[str] = Counter()
    for one in facts.steps:
        dropped.update(one.dropped)
    parts = [f"{sum(one.trained for one in facts.steps):,} trained"]
    parts += [f"{count:,} dropped as {why}" for why, count in sorted(dropped.items())]
    if facts.not_learned:
        parts.append(f"{len(facts.not_learned):,} of a step that was not trained")
    total = sum(one.episodes for one in facts.steps) + len(facts.not_learned)
    text = (
        f"{total:,} episodes: {', '.join(parts)}; "
        f"{sum(one.retried for one in facts.steps):,} were played again after a failure, "
        f"{sum(one.issued_again for one in facts.steps):,} after their worker was lost"
    )
    return Check(name=name, verdict="holds" if facts.steps else "not_shown", text=text)


def _adds_up(step: StepFacts, wanted: int | None) -> bool:
    whole = step.trained + sum(step.dropped.values()) == step.episodes
    counted = step.matched_tokens <= step.trained_tokens and step.captured_tokens <= step.sampled_tokens
    # Groups replaced by dynamic sampling are additional.
    return whole and counted and (wanted is None or step.episodes >= wanted)


def _tasks(facts: RunFacts, spec: PlayedSpec) -> Check:
    """Check that the tasks of every environment with data have a hash."""
    unknown = sorted(name for name, sha256 in spec.environment_data.items() if not sha256)
    if unknown:
        text = f"the tasks of {some(unknown)} were not hashed in time"
        return Check(name="data_pinned", verdict="not_shown", text=text)
    text = f"tasks as they were when the job was submitted: {_hashes(facts)}"
    return Check(name="data_pinned", verdict="holds", text=text)


def _data(facts: RunFacts) -> Check:
    records = sum(one.records for one in facts.steps)
    known = bool(facts.steps) and all(one.records_sha256 for one in facts.steps)
    return Check(
        name="data_pinned",
        verdict="holds" if known else "not_shown",
        text=f"{records:,} records of {_hashes(facts)}; the token ids of each step are pinned by a hash",
    )


def _template(spec: TrainingSpec) -> Check:
    """Name the chat template; it fails if the job's own one has another hash."""
    name, day, variables = "template_pinned", spec.template_date, spec.template_variables
    text = f"chat template {spec.template_sha256[:12]}"
    text += f", which writes the date {day}" if day else ""
    text += f", with {json.dumps(variables, sort_keys=True)}" if variables else ""
    own = template_sha256(spec.chat_template, variables, day)
    if spec.chat_template and own != spec.template_sha256:
        text = f"the hash of the job's chat template is {own[:12]}, not {spec.template_sha256[:12]}"
        return Check(name=name, verdict="fails", text=text)
    return Check(name=name, verdict="holds", text=text)


def _of_the_job(facts: RunFacts, check: Check) -> Check:
    """Return the check of the data; it fails if the hashes are not those of the job."""
    if facts.data == facts.job.spec.data_hashes:
        return check
    text = f"the hashes of the data differ from those in the job's settings: {_hashes(facts) or 'none'}"
    return check.model_copy(update={"verdict": "fails", "text": text})


def _hashes(facts: RunFacts) -> str:
    return ", ".join(f"{name} {sha256[:12]}" for name, sha256 in sorted(facts.data.items()))
