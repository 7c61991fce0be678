"""Check the facts of a run. Pure: the same facts give the same checks anywhere."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator

from tinkergym.schema.certificate import AgreementFacts, Certificate, Check, RunFacts, StepFacts, data_of
from tinkergym.schema.job_spec import JobSpec, LoRA, PlayedSpec
from tinkergym.schema.jobs import WrittenDataSpec
from tinkergym.schema.policy_calls import PolicySpec

_LISTED = 5
"""The most versions or steps listed in a sentence."""


def certify(facts: RunFacts) -> Certificate:
    """Return the certificate of a run, without a bundle."""
    return sealed(Certificate(facts=facts, checks=checks_of(facts)))


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
    checks = [
        _ended(facts),
        *_adapters(facts),
        _arrived(facts),
        _agreed(facts),
        _repeated(facts),
    ]
    spec = facts.job.spec
    if isinstance(spec, PlayedSpec):
        checks += [_tokens(facts), _episodes(facts, spec)]
        if spec.environment_data:
            checks.append(_of_the_job(facts, _tasks(facts, spec)))
    if isinstance(spec, WrittenDataSpec):
        checks.append(_of_the_job(facts, _data(facts)))
    return checks


def _ended(facts: RunFacts) -> Check:
    job = facts.job
    name = "run_complete"
    if isinstance(job.spec, PolicySpec):
        return Check(name=name, verdict="not_shown", text="the user's own loop decides when it is complete")
    missing = _missing({one.step for one in facts.steps}, range(1, job.step + 1))
    if missing:
        return Check(name=name, verdict="fails", text=f"recorded steps without facts: {_some(missing)}")
    if not job.state.final:
        return Check(
            name=name,
            verdict="not_shown",
            text=f"the job is {job.state}: step {job.step} of {job.spec.steps} so far",
        )
    text = f"the job is {job.state} at step {job.step} of {job.spec.steps}; each step is recorded once"
    return Check(name=name, verdict="holds", text=text)


def _adapters(facts: RunFacts) -> Iterator[Check]:
    """Check whether each adapter was applied in the engine, and not zero after the first step."""
    spec = facts.job.spec
    for agent in spec.trained_agents:
        name = f"adapter_bound{f'/{agent}' if agent else ''}"
        if not isinstance(spec.adapter_of(agent), LoRA):
            yield _whole_model(facts, name, agent)
            continue
        found = [one for one in facts.adapters if one.agent == agent]
        if not found:
            trained = facts.job.step > 0
            text = "no published version has a non-zero adapter" if trained else "nothing is trained yet"
            yield Check(name=name, verdict="fails" if trained else "not_shown", text=text)
            continue
        first = min(found, key=lambda one: (one.version, one.attempt))
        text = (
            f"version {first.version} is the first published one with a non-zero adapter: "
            f"{first.nonzero_tensors} "
            f"of {first.tensors} B matrices, norm {first.norm:.3g}"
        )
        if first.engine_shift is None:
            yield Check(
                name=name,
                verdict="not_shown",
                text=f"{text}; its effect on the engine's logprobs was not measured",
            )
            continue
        text += (
            f"; with it the engine's logprobs of {first.tokens} tokens differ by {first.engine_shift:.3g} "
            f"nats from those without, the learner's by {first.learner_shift or 0.0:.3g}"
        )
        drift = min(
            (one.mean for one in facts.agreements if (one.agent, one.version) == (agent, first.version)),
            default=0.0,
        )
        if first.engine_shift <= drift:
            text += f", which does not exceed the difference of {drift:.3g} between engine and learner"
            yield Check(name=name, verdict="not_shown", text=text)
        else:
            yield Check(name=name, verdict="holds", text=text)


def _whole_model(facts: RunFacts, name: str, agent: str) -> Check:
    hashes = {one.weights_sha256 for one in facts.publishes if one.agent == agent}
    return Check(
        name=name,
        verdict="holds" if len(hashes) > 1 else "not_shown",
        text=f"all parameters are trained; {len(hashes)} different weights were published",
    )


def _arrived(facts: RunFacts) -> Check:
    name, spec = "weights_arrived", facts.job.spec
    if not facts.publishes:
        return Check(name=name, verdict="not_shown", text="nothing was published")
    if isinstance(spec, PlayedSpec):
        for agent in spec.trained_agents:
            known = {one.version for one in facts.publishes if one.agent == agent}
            missing = _missing(known, range(facts.job.step + 1))
            if missing:
                whose = f" of {agent}" if agent else ""
                text = f"versions{whose} without a recorded publish: {_some(missing)}"
                return Check(name=name, verdict="fails", text=text)
    text = (
        f"{len(facts.publishes)} publishes; after each the engine reported the hash of the learner's weights"
    )
    return Check(name=name, verdict="holds", text=text)


def _agreed(facts: RunFacts) -> Check:
    name = "engine_and_learner_agree"
    if isinstance(facts.job.spec, PolicySpec) and not facts.agreements:
        return Check(
            name=name,
            verdict="not_shown",
            text="the user's own loop has submitted no batch to compare a published version by",
        )
    over = [one for one in facts.agreements if not one.mean <= one.allowed]
    if over:
        text = f"over the threshold: {_some([f'version {one.version} by {one.mean:.3g}' for one in over])}"
        return Check(name=name, verdict="fails", text=text)
    known = {(one.agent, one.version, one.attempt) for one in facts.agreements}
    published = {(one.agent, one.version, one.attempt): one.weights_sha256 for one in facts.publishes}
    # The same weights under another version need no second comparison.
    weights = {(key[0], sha256) for key, sha256 in published.items() if key in known}
    missing = sorted({key[:2] for key, sha256 in published.items() if (key[0], sha256) not in weights})
    if not facts.agreements:
        return Check(name=name, verdict="not_shown", text="nothing was compared")
    worst = max(facts.agreements, key=lambda one: one.mean)
    text = (
        f"publishes compared: {len(known)} of {len(published)}, on {_tokens_of(facts.agreements)} tokens: "
        f"mean differences of at most {worst.mean:.3g} nats, {worst.allowed:.3g} allowed"
    )
    if missing:
        named = [f"{agent}@{version}" if agent else str(version) for agent, version in missing]
        text += f"; not compared: version {_some(named)}"
        return Check(name=name, verdict="not_shown", text=text)
    if len(known) < len(published):
        text += "; the others published the same weights again"
    return Check(name=name, verdict="holds", text=text)


def _repeated(facts: RunFacts) -> Check:
    """Whether all attempts published the same weights under each version."""
    hashes: dict[tuple[str, int], set[str]] = defaultdict(set)
    for one in facts.publishes:
        hashes[one.agent, one.version].add(one.weights_sha256)
    differ = sorted(version for (_, version), found in hashes.items() if len(found) > 1)
    name, attempts = "one_history", max((one.attempt for one in facts.attempts), default=0)
    if differ:
        text = f"attempts computed different weights for versions {_some(differ)}; the last one counts"
        return Check(name=name, verdict="fails", text=text)
    times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    return Check(name=name, verdict="holds", text=f"{times}; every version has one set of weights")


def _tokens(facts: RunFacts) -> Check:
    name = "trained_tokens_were_sampled"
    trained = sum(one.trained_tokens for one in facts.steps)
    matched = sum(one.matched_tokens for one in facts.steps)
    if not trained:
        return Check(name=name, verdict="not_shown", text="nothing was trained on")
    text = f"{matched:,} of {trained:,} trained tokens match the engine's completions by digest"
    wrong = [one.step for one in facts.steps if one.matched_tokens != one.trained_tokens]
    if wrong:
        return Check(name=name, verdict="fails", text=f"{text}; steps with other tokens: {_some(wrong)}")
    return Check(name=name, verdict="holds", text=text)


def _episodes(facts: RunFacts, spec: PlayedSpec) -> Check:
    name = "every_episode_accounted_for"
    wanted = spec.episodes_per_step if isinstance(spec, JobSpec) else None
    wrong = [one.step for one in facts.steps if not _adds_up(one, wanted)]
    if wrong:
        return Check(name=name, verdict="fails", text=f"the episodes of steps {_some(wrong)} do not add up")
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
    # Groups replaced by dynamic sampling are additional.
    return (
        whole and (wanted is None or step.episodes >= wanted) and step.captured_tokens <= step.sampled_tokens
    )


def _tasks(facts: RunFacts, spec: PlayedSpec) -> Check:
    """Check that the tasks of every environment with data have a hash."""
    unknown = sorted(name for name, sha256 in spec.environment_data.items() if not sha256)
    if unknown:
        text = f"the tasks of {_some(unknown)} were not hashed in time"
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


def _of_the_job(facts: RunFacts, check: Check) -> Check:
    """Return the check of the data; it fails if the hashes are not those of the job."""
    if facts.data == data_of(facts.job.spec):
        return check
    text = f"the hashes of the data differ from those in the job's settings: {_hashes(facts) or 'none'}"
    return check.model_copy(update={"verdict": "fails", "text": text})


def _hashes(facts: RunFacts) -> str:
    return ", ".join(f"{name} {sha256[:12]}" for name, sha256 in sorted(facts.data.items()))


def _tokens_of(agreements: list[AgreementFacts]) -> str:
    return f"{sum(one.tokens for one in agreements):,}"


def _missing(known: set[int], wanted: range) -> list[int]:
    return [number for number in wanted if number not in known]


def _some(items: list[int] | list[str]) -> str:
    shown = ", ".join(map(str, items[:_LISTED]))
    return shown if len(items) <= _LISTED else f"{shown} and {len(items) - _LISTED} more"
