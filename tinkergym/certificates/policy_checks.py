"""Check what a run's facts say about each policy: its adapter, its publishes, its engine.

Pure: the same facts give the same checks anywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tinkergym.schema.certificate import AdapterFacts, Check, RunFacts
from tinkergym.schema.events import JobState
from tinkergym.schema.ids import agent_version
from tinkergym.schema.jobs.parts import LoRA


def policy_checks(facts: RunFacts) -> list[Check]:
    """Check the facts about the policies."""
    return [*_adapters(facts), _arrived(facts), _agreed(facts), _repeated(facts)]


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
        yield _bound(facts, name, found)


def _bound(facts: RunFacts, name: str, found: list[AdapterFacts]) -> Check:
    """Check what the first non-zero adapter of a policy does to the engine's logprobs."""
    # An attempt that was killed between publish and measurement leaves a record without one.
    measured = [one for one in found if one.engine_shift is not None]
    first = min(measured or found, key=lambda one: (one.version, one.attempt))
    earliest = min(one.version for one in found)
    order = "the first published one" if first.version == earliest else "the first measured one"
    text = (
        f"version {first.version} is {order} with a non-zero adapter: {first.nonzero_tensors} of "
        f"{first.tensors} B matrices, norm {first.norm:.3g}"
    )
    if first.engine_shift is None:
        text += "; its effect on the engine's logprobs was not measured"
        return Check(name=name, verdict="not_shown", text=text)
    text += (
        f"; with it the engine's logprobs of {first.tokens} tokens differ by {first.engine_shift:.3g} "
        f"nats from those without, the learner's by {first.learner_shift or 0.0:.3g}"
    )
    own = first.agent, first.version
    drift = max((one.mean for one in facts.agreements if (one.agent, one.version) == own), default=0.0)
    if first.engine_shift > drift:
        return Check(name=name, verdict="holds", text=text)
    text += f", which does not exceed the difference of {drift:.3g} between engine and learner"
    return Check(name=name, verdict="not_shown", text=text)


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
    for agent in spec.trained_agents:
        known = {one.version for one in facts.publishes if one.agent == agent}
        missing = [version for version in _published_by(facts) if version not in known]
        if missing:
            whose = f" of {agent}" if agent else ""
            text = f"versions{whose} without a recorded publish: {some(missing)}"
            return Check(name=name, verdict="fails", text=text)
    text = (
        f"{len(facts.publishes)} publishes; after each the engine reported the hash of the learner's weights"
    )
    return Check(name=name, verdict="holds", text=text)


def _published_by(facts: RunFacts) -> list[int]:
    """Return the versions that every policy must have published."""
    job = facts.job
    if job.spec.played:
        return list(range(job.step + 1))
    # Others publish before a checkpoint; the last step always has one.
    whole = not job.spec.by_calls and job.state is JobState.COMPLETED
    return [0, job.policy_version] if whole else []


def _agreed(facts: RunFacts) -> Check:
    name = "engine_and_learner_agree"
    if facts.job.spec.by_calls and not facts.agreements:
        return Check(
            name=name,
            verdict="not_shown",
            text="the user's own loop has submitted no batch to compare a published version by",
        )
    over = [one for one in facts.agreements if not one.mean <= one.allowed]
    if over:
        text = f"over the threshold: {some([f'version {one.version} by {one.mean:.3g}' for one in over])}"
        return Check(name=name, verdict="fails", text=text)
    known = {(one.agent, one.version, one.attempt) for one in facts.agreements}
    published = {(one.agent, one.version, one.attempt): one.weights_sha256 for one in facts.publishes}
    # The same weights under another version need no second comparison.
    weights = {(key[0], sha256) for key, sha256 in published.items() if key in known}
    missing = sorted({key[:2] for key, sha256 in published.items() if (key[0], sha256) not in weights})
    if not facts.agreements:
        return Check(name=name, verdict="not_shown", text="nothing was compared")
    worst = max(facts.agreements, key=lambda one: one.mean)
    tokens = sum(one.tokens for one in facts.agreements)
    text = (
        f"publishes compared: {len(known)} of {len(published)}, on {tokens:,} tokens: "
        f"mean differences of at most {worst.mean:.3g} nats, {worst.allowed:.3g} allowed"
    )
    if missing:
        named = [agent_version(*one) for one in missing]
        text += f"; not compared: version {some(named)}"
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
        text = f"attempts computed different weights for versions {some(differ)}; the last one counts"
        return Check(name=name, verdict="fails", text=text)
    times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    return Check(name=name, verdict="holds", text=f"{times}; every version has one set of weights")


_LISTED = 5
"""The most items listed in a sentence."""


def some(items: Sequence[int] | Sequence[str]) -> str:
    """Return the first few items, and how many more there are."""
    shown = ", ".join(map(str, items[:_LISTED]))
    return shown if len(items) <= _LISTED else f"{shown} and {len(items) - _LISTED} more"
