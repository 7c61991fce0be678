"""What in a run's log contradicts the certificate's facts."""

from __future__ import annotations

from collections.abc import Iterator

from tinkergym.certificates.bundle import EVENTS
from tinkergym.certificates.event_log import EventLog
from tinkergym.schema.certificate import AgreementFacts, CheckpointFacts, RunFacts, StepFacts
from tinkergym.schema.events import StepEvent, metric_by_policy
from tinkergym.schema.jobs.dataset import PreferenceSpec, SFTSpec
from tinkergym.schema.jobs.spec import JobSpec
from tinkergym.schema.jobs.view import JobView

_ROUNDING = 1e-3
"""Seconds by which a time that was stored as hours may differ."""

_SECONDS_PER_HOUR = 3600

_RECORDS: dict[type[JobSpec], int] = {SFTSpec: 1, PreferenceSpec: 2}
"""Sequences that the facts count for each record of the log."""


def log_problems(facts: RunFacts, log: EventLog) -> Iterator[str]:
    """Name the contradictions."""
    for problem in _found(facts, log):
        yield f"{EVENTS}: {problem}"


def _found(facts: RunFacts, log: EventLog) -> Iterator[str]:
    if (log.head_sha256, log.count) != (facts.events.head_sha256, facts.events.count):
        yield "the events differ from those that the service counted and chained"
    job = facts.job
    # The job was read first; a running one went on.
    if not (job.last_seq == log.count if job.state.final else 1 <= job.last_seq <= log.count):
        yield f"it has {log.count} events, but the job's newest is number {job.last_seq}"
        return
    if not log.times:
        yield "it has no events"
        return
    yield from _job(job, log)
    yield from _updates(job, log)
    if not job.spec.by_calls:
        yield from _usage(job, log)
        yield from _steps(facts, log)
    for agreement in facts.agreements:
        yield from _agreement(facts, agreement, log)
    for checkpoint in facts.checkpoints:
        yield from _checkpoint(checkpoint, log)


def _job(job: JobView, log: EventLog) -> Iterator[str]:
    if job.created_at != log.times[0]:
        yield "the job was not created when its log begins"
    if job.updated_at != log.times[job.last_seq - 1]:
        yield "the job did not change last when its newest event was written"
    states = [body for event, body in log.states if event.seq <= job.last_seq]
    if not states:
        yield "it has no state of the job"
        return
    if (job.state, job.error) != (states[-1].state, states[-1].error):
        yield f"its last state is {states[-1].state}, that of the job {job.state}"
    if job.reason != states[-1].reason:
        yield "the reason of the job's last state is another"
    if job.attempt != max(body.attempt for body in states):
        yield f"the job has had {job.attempt} attempts, but its log records another number"


def _updates(job: JobView, log: EventLog) -> Iterator[str]:
    logged = [update for event, update in log.updates if event.seq <= job.last_seq]
    taken = [update for update in job.updates if update.from_step is not None]
    if sorted(map(repr, logged)) != sorted(map(repr, taken)):
        yield "the changes of the job's settings are others"


def _usage(job: JobView, log: EventLog) -> Iterator[str]:
    """Compare what the job had used after its newest step with what it has used now."""
    done = [one for step in log.steps.values() for one in step if one[0].seq <= job.last_seq]
    if not done:
        if job.step or job.policy_version:
            yield f"the job is at step {job.step}, but none is logged"
        if not job.spec.by_calls:
            yield from _tokens(job, log, 0.0, since=0)
        return
    newest, body = max(done, key=lambda one: one[0].seq)
    if (job.step, job.policy_version) != (body.step, body.policy_version):
        yield (
            f"its newest step is {body.step} with version {body.policy_version}, those of the job are "
            f"{job.step} and {job.policy_version}"
        )
    yield from _tokens(job, log, body.metrics.get("used/tokens", 0.0), since=newest.seq)
    seconds = body.metrics.get("used/hours", 0.0) * _SECONDS_PER_HOUR
    # A job that has ended used no more time than passed since then.
    most = seconds + (job.updated_at - newest.time) if job.state.final else float("inf")
    if not seconds - _ROUNDING <= job.used_seconds <= most + _ROUNDING:
        yield f"the job used {seconds:.3f} s until its newest step, which does not fit {job.used_seconds:.3f}"


def _tokens(job: JobView, log: EventLog, before: float, *, since: int) -> Iterator[str]:
    """Compare what the job has used with what it had `before` an event, and its evaluations after it."""
    later = (one for event, one in log.evaluations if since < event.seq <= job.last_seq)
    tokens = before + sum(one.sampled_tokens for one in later)
    if job.used_tokens != tokens:
        yield f"by its log the job used {tokens:.0f} tokens, not {job.used_tokens}"


def _steps(facts: RunFacts, log: EventLog) -> Iterator[str]:
    recorded = {one.step for one in facts.steps}
    early = {
        step
        for step, events in log.steps.items()
        if any(event.seq <= facts.job.last_seq for event, _ in events)
    }
    for step in sorted(early - recorded):
        yield f"step {step} is logged, but has no facts"
    for one in facts.steps:
        found = log.steps.get(one.step, [])
        if not found:
            yield f"step {one.step} has facts, but is not logged"
        elif one.attempt not in {log.attempts[event.seq] for event, _ in found}:
            yield f"step {one.step} was done in another attempt than the facts say"
        elif fault := _step_fault(facts, one, found[-1][1]):
            yield f"step {one.step} has other {fault} in the facts"


def _step_fault(facts: RunFacts, step: StepFacts, event: StepEvent) -> str:
    """Return what a step's event contradicts in its facts; empty if nothing."""
    spec = facts.job.spec
    own = step.learning_rates if step.learning_rate is None else {"": step.learning_rate}
    differs = {
        "learning rates": metric_by_policy(event.metrics, "learning_rate") != own,
        "numbers of steps": event.steps != spec.steps,
    }
    if spec.played:
        differs |= {
            "versions": event.policy_version != event.step,
            "episodes": event.episodes != step.episodes,
            # Those of opponents are logged as well.
            "sampled tokens": event.sampled_tokens < step.sampled_tokens,
        }
    else:
        each = _RECORDS.get(type(spec), 1)
        differs |= {
            "trained tokens": event.trained_tokens != step.trained_tokens,
            "records": (event.records or 0) * each != step.records,
        }
    return next((name for name, wrong in differs.items() if wrong), "")


def _agreement(facts: RunFacts, one: AgreementFacts, log: EventLog) -> Iterator[str]:
    """Compare with the step of the same attempt that compared learner and engine."""
    spec = facts.job.spec
    if spec.by_calls:
        return
    if spec.played:
        if spec.played.versions_ahead:
            return  # The step's metric includes tokens of earlier versions.
        where = one.version + 1
    else:
        where = one.version
    known = dict[int, set[tuple[float, float]]]()
    for event, body in log.steps.get(where, []):
        means, largest = (metric_by_policy(body.metrics, f"parity_{name}") for name in ("mean", "max"))
        if one.agent in means:
            known.setdefault(log.attempts[event.seq], set()).add((means[one.agent], largest[one.agent]))
    resumes_with = log.first_steps.get(one.attempt, one.version + 1) - 1
    if not known or (not spec.played and one.version == resumes_with):
        return  # A job on a dataset compares the version that it resumes with again, by other tokens.
    if (one.mean, one.largest) not in known.get(one.attempt, ()):
        yield f"step {where} compared engine and learner with another result than the facts"


def _checkpoint(one: CheckpointFacts, log: EventLog) -> Iterator[str]:
    view = one.view
    same = [
        event
        for event in log.checkpoints
        if (event.agent, event.step) == (one.agent, view.step)
        or (event.key, event.path) == (view.key, view.path)
    ]
    wanted = one.agent, view.step, view.policy_version, view.key, view.path, view.sha256
    # A worker that was killed before it logged its checkpoint leaves none.
    logged = [(e.agent, e.step, e.policy_version, e.key, e.path, e.sha256) for e in same]
    if same and wanted not in logged:
        yield f"the checkpoint of step {view.step} is logged otherwise"
