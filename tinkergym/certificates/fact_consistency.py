"""What in a run's facts contradicts its other facts. A service that works never writes such facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator

from tinkergym.certificates.policy_checks import some
from tinkergym.errors import TinkerGymError
from tinkergym.schema.certificate import AdapterFacts, AgreementFacts, EpisodeFate, PublishFacts, RunFacts
from tinkergym.schema.ids import EpisodeId, JobRef, agent_version
from tinkergym.schema.steering import settings_now

ROUNDING = 1e-5
"""Nats by which the same difference of logprobs may differ, computed in two ways in float32."""

Key = tuple[str, int, int]
"""Agent, version and attempt."""


def fact_problems(facts: RunFacts) -> Iterator[str]:
    """Name the contradictions."""
    yield from _job(facts)
    yield from _attempts(facts)
    yield from _publishes(facts)
    yield from _agreements(facts)
    yield from _adapters(facts)
    yield from _steps(facts)
    yield from _checkpoints(facts)


def _job(facts: RunFacts) -> Iterator[str]:
    job = facts.job
    try:
        changed = settings_now(job.spec, job.updates)
    except (TinkerGymError, LookupError, TypeError, ValueError):  # The changes may be invented.
        changed = None
    if changed != job.spec:
        yield "the job's settings are not those after its changes of them"
    if facts.data != job.spec.data_hashes:
        yield "the hashes of the data are not those in the job's settings"
    if job.cost is not None:
        yield "it has a cost, which is computed from prices and never recorded"
    trains = {one.version for one in facts.publishes} | {one.view.policy_version for one in facts.checkpoints}
    if job.policy_version and job.policy_version not in trains:
        yield f"the job's version {job.policy_version} was neither published nor saved"


def _attempts(facts: RunFacts) -> Iterator[str]:
    known = [one.attempt for one in facts.attempts]
    yield from _twice("attempt", known)
    if over := [one for one in known if not 1 <= one <= facts.job.attempt]:
        yield f"attempts {some(over)} are recorded, but the job has had {facts.job.attempt}"
    of_policies = {
        attempt
        for found in (facts.publishes, facts.agreements, facts.adapters)
        for *_, attempt in _keys(found)
    }
    if over := sorted((of_policies | {one.attempt for one in facts.steps}) - set(known)):
        yield f"attempts {some(over)} have facts, but were not recorded"


def _publishes(facts: RunFacts) -> Iterator[str]:
    keys = _keys(facts.publishes)
    yield from _twice("publish", keys)
    trained = set(facts.job.spec.trained_agents)
    agents = {agent for agent, *_ in keys} | {one.agent for one in facts.checkpoints}
    if others := sorted(agents - trained):
        yield f"{some([repr(agent) for agent in others])} is not an agent whose policy is trained"
    for what, found in (("compared", facts.agreements), ("measured", facts.adapters)):
        if lost := sorted(set(_keys(found)) - set(keys)):
            versions = some([agent_version(agent, version) for agent, version, _ in lost])
            yield f"version {versions} was {what}, but not published in that attempt"


def _agreements(facts: RunFacts) -> Iterator[str]:
    yield from _twice("comparison", _keys(facts.agreements))
    played = facts.job.spec.played
    asked = played.parity_threshold if played else None
    for attempt in sorted({one.attempt for one in facts.agreements}):
        allowed = {one.allowed for one in facts.agreements if one.attempt == attempt}
        if len(allowed) > 1 or (asked is not None and allowed != {asked}):
            yield f"the comparisons of attempt {attempt} do not have the job's threshold"
    sampled = {one.step: one.sampled_tokens for one in facts.steps}
    if played:
        tokens = Counter[tuple[int, int]]()
        for one in facts.agreements:
            tokens[one.attempt, one.version] += one.tokens if one.by == "episodes" else 0
        # A version samples the next step's episodes, and with staleness some of a later one's.
        for (_, version), count in tokens.items():
            if count > sampled.get(version + 1, count):
                yield f"version {version} was compared on more tokens than it sampled"
    for one in facts.agreements:
        named = agent_version(one.agent, one.version)
        if not 0 <= one.mean <= one.largest:
            yield f"version {named} was compared with a mean difference above the largest"
        if one.tokens < 0:
            yield f"version {named} was compared on {one.tokens} tokens"


def _adapters(facts: RunFacts) -> Iterator[str]:
    yield from _twice("adapter", _keys(facts.adapters))
    compared = dict(zip(_keys(facts.agreements), facts.agreements, strict=True))
    for key, one in zip(_keys(facts.adapters), facts.adapters, strict=True):
        named = agent_version(one.agent, one.version)
        if one.version < 1 or not 1 <= one.nonzero_tensors <= one.tensors or one.norm <= 0:
            yield f"the adapter of version {named} is recorded as non-zero, and is not"
        if (one.engine_shift is None) != (one.learner_shift is None) or (one.engine_shift is None) != (
            one.tokens == 0
        ):
            yield f"the effect of version {named} is measured in part"
        if one.engine_shift is None or one.learner_shift is None:
            continue
        agreement = compared.get(key)
        if agreement is None:
            yield f"the effect of version {named} was measured without a comparison"
            continue
        # Both are means over the same tokens, on which engine and learner were compared.
        if abs(one.engine_shift - one.learner_shift) > agreement.largest + ROUNDING:
            yield f"engine and learner disagree on the effect of version {named}"
        if one.tokens > agreement.tokens:
            yield f"the effect of version {named} was measured on more tokens than were compared"


def _steps(facts: RunFacts) -> Iterator[str]:
    spec = facts.job.spec
    for one in facts.steps:
        if not spec.by_calls and not 1 <= one.step <= spec.steps:
            yield f"step {one.step} is recorded of {spec.steps}"
        own = one.learning_rates if one.learning_rate is None else {"": one.learning_rate}
        if others := sorted(set(own) - set(spec.trained_agents)):
            yield f"step {one.step} has learning rates of {some(others)}"
        if spec.played and (one.records or one.records_sha256):
            yield f"step {one.step} of a job that plays has records"
        if not spec.played and (one.episodes or one.ledger_sha256 or one.sampled_tokens):
            yield f"step {one.step} of a job that does not play has episodes"
    recorded = {one.step for one in facts.steps}
    for fate in facts.not_learned:
        plain = EpisodeFate(episode_id=fate.episode_id, fate="not_learned", sha256=fate.sha256)
        found = EpisodeId.find(fate.episode_id)
        other = found is None or found.job != JobRef(facts.job.job_id) or found.step in recorded
        if fate != plain or not fate.sha256 or other:
            yield f"episode {fate.episode_id} is not one of a step that was not trained"
    yield from _twice("episode", [fate.episode_id for fate in facts.not_learned])


def _checkpoints(facts: RunFacts) -> Iterator[str]:
    yield from _twice("checkpoint", [(one.agent, one.view.step) for one in facts.checkpoints])
    for one in facts.checkpoints:
        if one.view.agent not in ("", one.agent):
            yield f"the checkpoint of step {one.view.step} has two agents"


def _keys(found: Iterable[PublishFacts | AgreementFacts | AdapterFacts]) -> list[Key]:
    return [(one.agent, one.version, one.attempt) for one in found]


def _twice(what: str, keys: Iterable[Hashable]) -> Iterator[str]:
    for key, times in Counter(keys).items():
        if times > 1:
            yield f"the {what} {key} is recorded {times} times"
